export { createContext, Fragment, h, render } from "preact";
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
export { html } from "htm/preact";

// What pages show, as hooks: the live picture of the cluster, and answers that a page asks for itself.

import { createContext, useContext, useEffect, useReducer, useRef, useState } from "/console/vendor/preact.js";
import { live, onLive, watchGroups } from "/console/live.js";

// The picture that live.js keeps; the component is drawn again with every answer.
export function useLive() {
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => onLive(again), []);
  return live;
}

// The same, with the groups, which are asked for only while somebody looks.
export function useGroups() {
  useEffect(() => {
    watchGroups(true);
    return () => watchGroups(false);
  }, []);
  return useLive();
}

// The state of one answer: {value, error, at, reload}. An error keeps the value that was there before.
// Asked again every `period` milliseconds, unless that is 0 or the page is hidden.
export function useLoad(load, inputs, period = 0) {
  const [state, set] = useState({ value: null, error: null, at: 0 });
  const reload = useRef(() => {});
  useEffect(() => {
    let timer = 0, isOver = false;
    const turn = async () => {
      clearTimeout(timer);
      try {
        const value = document.hidden && period ? undefined : await load();
        if (!isOver && value !== undefined) set({ value, error: null, at: Date.now() });
      } catch (error) {
        if (!isOver) set((old) => ({ ...old, error }));
      }
      if (!isOver && period) timer = setTimeout(turn, period);
    };
    set({ value: null, error: null, at: 0 });
    reload.current = turn;
    turn();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, inputs);
  return { ...state, reload: () => reload.current(), give: (value) => set({ value, error: null, at: Date.now() }) };
}

// Of the live picture: the same four states.
export function liveState() {
  const error = live.failedSince ? new Error(live.problem) : null;
  return { value: live.answeredAt ? live : null, error, at: live.answeredAt };
}

export const Session = createContext({ allowed: {} });

// Whether the caller may do an operation: `may("cluster", "ALTER")`. Where nobody is logged in, everything is
// offered, and the node asks for a login when it needs one.
export function useMay() {
  const { allowed } = useContext(Session);
  return (kind, operation) => allowed[kind]?.includes(operation) ?? true;
}

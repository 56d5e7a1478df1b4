"""Health check of the image: exit code 0 if the node in this container answers /health.

The port and whether it speaks TLS come from the variables that the node itself reads. The certificate is not
checked: it is for the name under which others ask, and nothing is sent.
"""

import os
import ssl
from urllib.request import urlopen

port = os.environ.get("CHRONIK_HTTP_PORT") or "6092"
scheme = "https" if os.environ.get("CHRONIK_HTTP_TLS_CERT") else "http"
unchecked = ssl.create_default_context()
unchecked.check_hostname = False
unchecked.verify_mode = ssl.CERT_NONE
urlopen(f"{scheme}://127.0.0.1:{port}/health", timeout=2, context=unchecked).close()

"""The Kafka listener: connections, dispatch, one handler per API.

Flow: a connection cuts frames and reads the request header; `dispatch` finds the API's handler, decodes the
body, runs the handler, and encodes its reply for the version that was asked. Handlers turn a request into
calls on the services (metadata store, partitions, coordinators) and their results into a plain reply.

Invariants: an error of one request never ends another one or, unless the bytes made no sense, its connection;
every request is answered or refused within its deadline.

Not its job: state of any kind; a handler keeps nothing between two requests.
"""

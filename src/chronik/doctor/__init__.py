"""What is wrong with a machine or a cluster, and what to do about it.

Looks at things and changes nothing; what it sees are `Finding`s. `chronik doctor` shows them on the terminal,
`GET /admin/doctor` to the console, for the machine of each node.
"""

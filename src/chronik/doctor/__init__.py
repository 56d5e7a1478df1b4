"""What is wrong with a machine or a cluster, and what to do about it.

Looks at things and changes nothing; what it sees are `Finding`s. `chronik doctor` shows them on the terminal,
`GET /admin/doctor` to the console. What only a node that is about to start can stumble over (its settings,
ports and directory) is looked at in `cli/doctor_start.py`.
"""

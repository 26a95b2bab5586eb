"""The personal part: what each client adds, on its own data, to the model of its group.

It is made after training, never leaves its client, and changes nothing of the federation: a new client gets the group's
model without it.
"""

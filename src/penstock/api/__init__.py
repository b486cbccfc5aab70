"""The table of operations: what can be asked of Penstock, declared once for every door, the client and the description.

Types, limits and declarations only: nothing here knows a broker or a protocol's library.
"""

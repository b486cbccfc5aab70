"""Who may do what: principals, access rules, roles and credentials as pure values. No clock, socket, file or loop."""

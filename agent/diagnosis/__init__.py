"""Evidence, rules, and accounts that divide each GPU's time among states and causes."""

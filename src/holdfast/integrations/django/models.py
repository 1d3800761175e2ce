"""No models: the tables of the jobs belong to the store. Django tells only apps with this module of `migrate`."""

"""Which kernels there are, which fits, and why: variants, the registry, costs, selection and its trace."""

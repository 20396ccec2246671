//! A lease on a file of one user holds up nobody else.

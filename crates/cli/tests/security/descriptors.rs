//! One user with very many open files leaves descriptors to the others.

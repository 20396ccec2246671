//! Every ioctl in both widths, as a user who does not own the file.

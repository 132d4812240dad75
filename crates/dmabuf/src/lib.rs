//! dmabuf.

//! The ioctls of DRM drivers, and buffers that pass between nodes by descriptor (PRIME).

pub(crate) mod amdgpu;
pub(crate) mod intel;
pub(crate) mod prime;

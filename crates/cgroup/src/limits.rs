//! What `rdma.max` and `dmem.max` allow.

use crate::groups::{Group, Groups};

/// A limit, and the group that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// The group. The limit is one for all processes in it and below it.
    pub group: Group,
    /// So many objects, or bytes, may be used.
    pub most: u64,
}

/// What the kernel counts of an RDMA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[doc(alias = "rdmacg_resource_type")]
#[expect(clippy::exhaustive_enums, reason = "the two of the kernel")]
pub enum RdmaResource {
    /// Open contexts.
    HcaHandle,
    /// Objects in them.
    HcaObject,
}

impl RdmaResource {
    /// Its name in the files.
    pub fn name(self) -> &'static str {
        match self {
            Self::HcaHandle => "hca_handle",
            Self::HcaObject => "hca_object",
        }
    }
}

impl Groups {
    /// What the groups of the process allow of an RDMA device, the nearest group first.
    pub fn rdma_max(&self, device: &str, resource: RdmaResource) -> Vec<Limit> {
        self.limits("rdma", "rdma.max", |text| rdma(text, device, resource))
    }

    /// How many bytes of a region of device memory they allow. The driver of a GPU names the
    /// region: `drm/0000:03:00.0/vram0`.
    pub fn dmem_max(&self, region: &str) -> Vec<Limit> {
        self.limits("dmem", "dmem.max", |text| dmem(text, region))
    }

    fn limits(&self, controller: &str, name: &str, of: impl Fn(&str) -> Option<u64>) -> Vec<Limit> {
        let files = self.files(controller, name).into_iter();
        files.filter_map(|file| Some(Limit { most: of(&file.text)?, group: file.group })).collect()
    }
}

/// `mlx5_0 hca_handle=2 hca_object=max`.
fn rdma(text: &str, device: &str, resource: RdmaResource) -> Option<u64> {
    let words = words_behind(text, device)?;
    let mut values = words.filter_map(|word| word.split_once('='));
    values.find(|(name, _)| *name == resource.name())?.1.parse().ok()
}

/// `drm/0000:03:00.0/vram0 1073741824`.
fn dmem(text: &str, region: &str) -> Option<u64> {
    words_behind(text, region)?.next()?.parse().ok()
}

/// The words of a line behind its first one.
fn words_behind<'a>(text: &'a str, first: &str) -> Option<std::str::SplitWhitespace<'a>> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(first)).then_some(words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_limits_one_device_and_max_is_no_limit() {
        let text = "mlx5_0 hca_handle=2 hca_object=max\nmlx5_10 hca_handle=max hca_object=7\n";
        assert_eq!(rdma(text, "mlx5_0", RdmaResource::HcaHandle), Some(2));
        assert_eq!(rdma(text, "mlx5_0", RdmaResource::HcaObject), None);
        assert_eq!(rdma(text, "mlx5_10", RdmaResource::HcaObject), Some(7));
        assert_eq!(rdma(text, "mlx5_1", RdmaResource::HcaObject), None);
        let text = "drm/0000:03:00.0/vram0 1073741824\ndrm/0000:04:00.0/vram0 max\n";
        assert_eq!(dmem(text, "drm/0000:03:00.0/vram0"), Some(1 << 30));
        assert_eq!(dmem(text, "drm/0000:04:00.0/vram0"), None);
    }
}

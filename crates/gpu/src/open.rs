//! Opening a GPU.

use std::sync::Arc;

use dmabuf::BusWindow;
use pci::PciTree;

use crate::client::Client;
use crate::config::GpuConfig;
use crate::device::Device;
use crate::error::{Result, no_memory};
use crate::peers::Peers;
use crate::{here, serve, weather};

/// Bus addresses of one GPU: many times what its memory needs, so that retired addresses are not
/// reused soon.
const WINDOW: u64 = 64 << 30;

pub(crate) fn open(config: &GpuConfig, tree: Arc<PciTree>) -> Result<Arc<Device>> {
    config.check()?;
    weather::begin()?;
    let window = BusWindow::new(WINDOW, config.iommu)
        .map_err(|error| no_memory(format!("no bus window for {}: {error}", config.name)))?;
    let device = Arc::new(Device::new(config, tree, window, Peers::join(config)?));
    serve::begin(&device)?;
    here::add(&device);
    weather::opened();
    dmabuf::peer::register_client(device.client.get_or_init(|| Client::of(&device)));
    Ok(device)
}

//! The importers: the NIC in each class that it has, and a static importer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dmabuf::{
    AttachError, DeviceAddr, Direction, DmaBuf, ExporterErrorKind, ImporterClass, MapError, Reach,
};
use verbs::soft::{self, ImporterConfig, NicConfig};
use verbs::{Access, Context, Cq, HostBuf, Kind, Pd, Qp, QpSpec, SendRequest};

use super::exporters::{Buffer, Machine};
use super::table::Cell;
use crate::cli::outcome::Outcome;

/// Nothing on one host takes this long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that are written to see whether they arrive.
const LENGTH: u32 = 64;

/// A class of importer, in the order of the table's columns.
#[derive(Clone, Copy)]
pub(super) enum Class {
    /// As mlx5.
    Dynamic = 0,
    /// As irdma.
    Revocable = 1,
    /// As efa, `bnxt_re`, mana, ionic.
    Pinned = 2,
    /// As io_uring's zero-copy receive.
    Static = 3,
}

impl Class {
    pub(super) const ALL: [Self; 4] = [Self::Dynamic, Self::Revocable, Self::Pinned, Self::Static];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dynamic => "dynamic",
            Self::Revocable => "revocable",
            Self::Pinned => "pinned",
            Self::Static => "static",
        })
    }
}

/// An importer of one class, at one place in the machine.
pub(super) enum Importer {
    Nic(Box<Nic>),
    Static(Arc<dyn dmabuf::Importer>),
}

impl Importer {
    pub(super) fn open(class: Class, machine: &Machine, reaches: bool) -> Outcome<Self> {
        let address = machine.nic(reaches);
        let importer = match class {
            Class::Dynamic => ImporterConfig::Dynamic,
            Class::Revocable => ImporterConfig::Revocable,
            Class::Pinned => ImporterConfig::Pinned,
            Class::Static => return Ok(Self::Static(static_importer(address))),
        };
        let name = format!("matrix{}-{class}", std::process::id());
        let config = NicConfig { name, importer: Some(importer), address, ..NicConfig::default() };
        Ok(Self::Nic(Box::new(Nic::open(config)?)))
    }

    /// Imports a buffer, and returns the outcome.
    pub(super) fn import(&self, buffer: &Buffer) -> Outcome<Cell> {
        match self {
            Self::Nic(nic) => nic.import(buffer),
            Self::Static(importer) => {
                import_statically(importer, buffer.exported(), || buffer.place())
            }
        }
    }
}

/// A NIC with two queue pairs, connected to each other.
pub(super) struct Nic {
    pd: Pd,
    source: HostBuf,
    cq: Cq,
    qp: Qp,
    _target: Qp,
    _context: Context,
}

impl Nic {
    fn open(config: NicConfig) -> Outcome<Self> {
        let context = soft::device(config)?.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16)?;
        let (qp, target) = (pd.create_qp(&QpSpec::rc(&cq))?, pd.create_qp(&QpSpec::rc(&cq))?);
        qp.connect(&target.endpoint()?)?;
        target.connect(&qp.endpoint()?)?;
        let source = HostBuf::anonymous(LENGTH as usize)?;
        Ok(Self { pd, source, cq, qp, _target: target, _context: context })
    }

    fn import(&self, buffer: &Buffer) -> Outcome<Cell> {
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let region = match self.pd.reg_whole_dmabuf(buffer.exported(), access) {
            Ok(region) => region,
            Err(refusal) => {
                // The words come from `dmabuf`, which knows the step; the kind is what becomes an
                // errno.
                let step = ["attach", "pin", "map"]
                    .into_iter()
                    .find(|step| refusal.what().contains(&format!("refuses to {step}")));
                let step = step.ok_or_else(|| format!("refused at no known step: {refusal}"))?;
                return Ok(format!("{step} {}", errno(refusal.kind())));
            }
        };
        let place = buffer.place()?;
        let sent: Vec<u8> = (0..LENGTH as u8).map(|byte| byte.wrapping_mul(37) ^ 0xa5).collect();
        self.source.write(0, &sent)?;
        let local = self.pd.reg_mr(&self.source, Access::LOCAL_WRITE)?;
        let write = SendRequest::write(1, &[local.slice(0, LENGTH)], region.remote(0));
        self.qp.post_send(&write.signaled())?;
        let wc = self.cq.wait_timeout(PATIENCE)?.ok_or("no completion within 20 seconds")?;
        if !wc.is_success() {
            return Err(format!("the write ended with {:?}", wc.status).into());
        }
        let mut found = vec![0; LENGTH as usize];
        buffer.read(&mut found)?;
        if found != sent {
            return Err("the write succeeded, and the bytes are not in the buffer".into());
        }
        Ok(place)
    }
}

/// The name of an errno that a refusal can become.
pub(super) fn errno_name(number: i32) -> String {
    match number {
        libc::EINVAL => "EINVAL",
        libc::EBUSY => "EBUSY",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        524 => "ENOTSUPP",
        libc::EPERM => "EPERM",
        libc::ENODEV => "ENODEV",
        libc::ENOMEM => "ENOMEM",
        libc::EAGAIN => "EAGAIN",
        other => return other.to_string(),
    }
    .to_owned()
}

fn errno(kind: Kind) -> String {
    match kind {
        Kind::Invalid => "EINVAL".to_owned(),
        Kind::Busy => "EBUSY".to_owned(),
        Kind::NotSupported => "EOPNOTSUPP".to_owned(),
        Kind::Unsupported => "ENOTSUPP".to_owned(),
        Kind::NotPermitted => "EPERM".to_owned(),
        Kind::NoDevice => "ENODEV".to_owned(),
        Kind::NoMemory => "ENOMEM".to_owned(),
        Kind::WouldBlock => "EAGAIN".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A driver that does not support memory that moves.
struct Static {
    address: Option<DeviceAddr>,
}

impl dmabuf::Importer for Static {
    fn name(&self) -> &str {
        "static"
    }

    fn class(&self) -> ImporterClass {
        ImporterClass::Static
    }

    fn device(&self) -> Option<DeviceAddr> {
        self.address
    }
}

/// A static importer at this place in the machine.
pub(super) fn static_importer(address: Option<DeviceAddr>) -> Arc<dyn dmabuf::Importer> {
    Arc::new(Static { address })
}

/// Imports a buffer, and returns the outcome; `place` says where the buffer is.
pub(super) fn import_statically(
    importer: &Arc<dyn dmabuf::Importer>,
    buffer: &DmaBuf,
    place: impl FnOnce() -> Outcome<Cell>,
) -> Outcome<Cell> {
    let refused = |step: &str, kind: ExporterErrorKind| match kind {
        ExporterErrorKind::Invalid => format!("{step} EINVAL"),
        ExporterErrorKind::Busy => format!("{step} EBUSY"),
        ExporterErrorKind::NotSupported => format!("{step} EOPNOTSUPP"),
        ExporterErrorKind::Unsupported => format!("{step} ENOTSUPP"),
        ExporterErrorKind::NotPermitted => format!("{step} EPERM"),
        ExporterErrorKind::NoDevice => format!("{step} ENODEV"),
        ExporterErrorKind::NoMemory => format!("{step} ENOMEM"),
        other => format!("{step} {other:?}"),
    };
    let attachment = match buffer.attach(importer) {
        Ok(attachment) => attachment,
        Err(AttachError::Exporter { reason, .. }) => return Ok(refused("attach", reason.kind)),
        Err(error) => return Err(error.into()),
    };
    let resv = attachment.resv().lock();
    match attachment.map(&resv, Direction::Bidirectional) {
        Ok(map) => {
            let in_system = map.table().map_type == Reach::System;
            let place = place()?;
            if in_system != (place == "ok system") {
                return Err(format!("{:?}, but {place}", map.table().map_type).into());
            }
            map.unmap(&resv);
            Ok(place)
        }
        Err(MapError::Exporter { reason, .. }) => Ok(refused("map", reason.kind)),
        Err(error) => Err(error.into()),
    }
}

//! Asynchronous events.

/// What happened, with the values of `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_event_type")]
#[non_exhaustive]
#[repr(u8)]
pub enum EventType {
    /// A completion queue overran.
    CqErr = 0,
    /// A QP failed and cannot report it by a completion.
    QpFatal = 1,
    /// A peer sent an invalid request.
    QpReqErr = 2,
    /// A peer's request broke the access rules.
    QpAccessErr = 3,
    /// A packet arrived on a QP that was only ready to receive.
    CommEst = 4,
    /// The send queue finished what it had begun.
    SqDrained = 5,
    /// The path migrated.
    PathMig = 6,
    /// The path could not migrate.
    PathMigErr = 7,
    /// The device failed.
    DeviceFatal = 8,
    /// A port became active.
    PortActive = 9,
    /// A port went down.
    PortErr = 10,
    /// The LID changed.
    LidChange = 11,
    /// The partition table changed.
    PkeyChange = 12,
    /// The subnet manager changed.
    SmChange = 13,
    /// A shared receive queue failed.
    SrqErr = 14,
    /// A shared receive queue fell below its limit.
    SrqLimitReached = 15,
    /// A QP with a shared receive queue has used its last receive.
    QpLastWqeReached = 16,
    /// The subnet manager asks to register again.
    ClientReregister = 17,
    /// The GID table changed.
    GidChange = 18,
    /// A work queue failed.
    WqFatal = 19,
}

impl EventType {
    /// Every event, in the order of their values.
    pub const ALL: [Self; 20] = [
        Self::CqErr,
        Self::QpFatal,
        Self::QpReqErr,
        Self::QpAccessErr,
        Self::CommEst,
        Self::SqDrained,
        Self::PathMig,
        Self::PathMigErr,
        Self::DeviceFatal,
        Self::PortActive,
        Self::PortErr,
        Self::LidChange,
        Self::PkeyChange,
        Self::SmChange,
        Self::SrqErr,
        Self::SrqLimitReached,
        Self::QpLastWqeReached,
        Self::ClientReregister,
        Self::GidChange,
        Self::WqFatal,
    ];

    /// The event that `value` encodes, if any.
    pub fn from_code(value: u32) -> Option<Self> {
        Self::ALL.get(value as usize).copied()
    }
}

/// The events that a QP's own protocol raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpEvent {
    /// [`EventType::QpFatal`].
    Fatal,
    /// [`EventType::QpReqErr`].
    ReqErr,
    /// [`EventType::QpAccessErr`].
    AccessErr,
    /// [`EventType::CommEst`].
    CommEst,
    /// [`EventType::SqDrained`].
    SqDrained,
    /// [`EventType::QpLastWqeReached`].
    LastWqeReached,
}

impl From<QpEvent> for EventType {
    fn from(event: QpEvent) -> Self {
        match event {
            QpEvent::Fatal => Self::QpFatal,
            QpEvent::ReqErr => Self::QpReqErr,
            QpEvent::AccessErr => Self::QpAccessErr,
            QpEvent::CommEst => Self::CommEst,
            QpEvent::SqDrained => Self::SqDrained,
            QpEvent::LastWqeReached => Self::QpLastWqeReached,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_event() {
        for event in EventType::ALL {
            assert_eq!(EventType::from_code(event as u32), Some(event));
        }
        assert_eq!(EventType::from_code(20), None);
    }
}

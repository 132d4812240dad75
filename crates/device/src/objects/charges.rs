//! Contexts and objects, charged to the control groups of the process: `rdma.max`
//! (`docs/semantics.md` 2.7).
//!
//! The kernel counts for each group what all processes in it and below it have. Here each process
//! names its share in the host registry, and whoever makes an object adds up those of the others.
//! Where no group has a limit for the device nothing is named, and an object costs a counter.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cgroup::{Groups, Limit, RdmaResource};

use crate::budget::{Budget, Full};
use crate::refusal::{Result, no_memory, refuse};

/// What this process has, and what its groups allow.
#[derive(Clone, Debug)]
pub(crate) struct Charges(Arc<Mutex<Charged>>);

#[derive(Debug)]
struct Charged {
    nic: String,
    vf: u16,
    groups: Groups,
    /// Whether some group had a limit for the NIC when a context was last opened.
    is_limited: bool,
    handles: u64,
    objects: u64,
    shares: Vec<Share>,
}

/// What this process has of the limit of one group.
#[derive(Debug)]
struct Share {
    group: u64,
    resource: RdmaResource,
    budget: Budget,
}

/// One context or object, charged until this is dropped.
#[derive(Debug)]
#[must_use = "dropped, it is charged no longer"]
pub(crate) struct Charge {
    of: Option<Charges>,
    resource: RdmaResource,
}

impl Charges {
    pub(crate) fn new(nic: &str, vf: u16, root: &Path) -> Self {
        Self(Arc::new(Mutex::new(Charged {
            nic: nic.to_owned(),
            vf,
            groups: Groups::of_self(root),
            is_limited: false,
            handles: 0,
            objects: 0,
            shares: Vec::new(),
        })))
    }

    /// Charges a context, and looks whether there are limits for what will be made in it.
    #[doc(alias = "ib_rdmacg_try_charge")]
    pub(crate) fn context(&self, call: &str) -> Result<Charge> {
        {
            let mut charged = self.lock();
            let resources = [RdmaResource::HcaHandle, RdmaResource::HcaObject];
            let has_limit = |resource| !charged.limits(resource).is_empty();
            let is_limited = resources.into_iter().any(has_limit);
            charged.is_limited |= is_limited;
        }
        self.charge(call, RdmaResource::HcaHandle)
    }

    /// Charges an object.
    pub(crate) fn object(&self, call: &str) -> Result<Charge> {
        self.charge(call, RdmaResource::HcaObject)
    }

    fn charge(&self, call: &str, resource: RdmaResource) -> Result<Charge> {
        let mut charged = self.lock();
        if charged.is_limited {
            charged.take(call, resource)?;
        }
        *charged.count(resource) += 1;
        Ok(Charge { of: Some(self.clone()), resource })
    }

    pub(crate) fn abandon_in_child(&self) {
        self.lock().shares.iter_mut().for_each(|share| share.budget.abandon_in_child());
    }

    fn lock(&self) -> MutexGuard<'_, Charged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Charged {
    fn limits(&self, resource: RdmaResource) -> Vec<Limit> {
        self.groups.rdma_max(&self.nic, resource)
    }

    fn count(&mut self, resource: RdmaResource) -> &mut u64 {
        match resource {
            RdmaResource::HcaHandle => &mut self.handles,
            RdmaResource::HcaObject => &mut self.objects,
        }
    }

    /// Takes one from what each group allows, or none from any (EAGAIN).
    fn take(&mut self, call: &str, resource: RdmaResource) -> Result<()> {
        let (nic, vf, name) = (self.nic.clone(), self.vf, resource.name());
        let mut taken = Vec::new();
        let mut refused = None;
        for limit in self.limits(resource) {
            let Some(group) = limit.group.id() else { continue };
            let at = self.share(group, resource)?;
            match self.shares[at].budget.take(&nic, vf, 1, limit.most) {
                Ok(()) => taken.push(at),
                Err(full) => {
                    refused = Some((limit, full));
                    break;
                }
            }
        }
        let Some((limit, full)) = refused else { return Ok(()) };
        for at in taken {
            self.shares[at].budget.give(&nic, vf, 1);
        }
        let Limit { group, most, .. } = limit;
        let (used, others) = match full {
            Full::Own { used } => (used, 0),
            Full::Together { used, others } => (used, others),
            Full::Registry(error) => return Err(no_memory(call, &error)),
        };
        refuse!(
            WouldBlock,
            "{call}: rdma.max of {group} allows {most} {name} of {nic}; this process has {used}, others {others}{}",
            sandbox::HINT
        )
    }

    /// The share for a group, which begins with what the process has already.
    fn share(&mut self, group: u64, resource: RdmaResource) -> Result<usize> {
        let is_it = |share: &Share| share.group == group && share.resource == resource;
        if let Some(at) = self.shares.iter().position(is_it) {
            return Ok(at);
        }
        let mut budget = Budget::new(format!("{}-{group}", resource.name()));
        let held = *self.count(resource);
        if let Err(Full::Registry(error)) = budget.declare(&self.nic, self.vf, held) {
            return Err(no_memory("rdma.max", &error));
        }
        self.shares.push(Share { group, resource, budget });
        Ok(self.shares.len() - 1)
    }

    fn give(&mut self, resource: RdmaResource) {
        *self.count(resource) -= 1;
        for share in self.shares.iter_mut().filter(|share| share.resource == resource) {
            share.budget.give(&self.nic, self.vf, 1);
        }
    }
}

impl Charge {
    /// Of an object that no device has.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { of: None, resource: RdmaResource::HcaObject }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(of) = &self.of {
            of.lock().give(self.resource);
        }
    }
}

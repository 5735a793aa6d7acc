//! Rows, and the columns common to all stores.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::StoreError;
use crate::model::{Check, Digest, Health, Instance, InstanceId, Location, Machines, Metadata, Revision, ServiceKey};

/// A row of either table.
#[derive(Clone, Debug)]
pub enum Record {
    /// A row of `instance`.
    Instance(InstanceRow),
    /// A row of `service`.
    Service(ServiceRow),
}

impl Record {
    /// Returns the revision at which the row was written.
    pub(crate) fn revision(&self) -> Revision {
        match self {
            Record::Instance(row) => row.instance.revision,
            Record::Service(row) => row.revision,
        }
    }
}

/// An instance, or the tombstone of one.
#[derive(Clone, Debug)]
pub struct InstanceRow {
    /// The instance; a tombstone has only id, service, revision and times.
    pub instance: Instance,
    /// True for a tombstone.
    pub deleted: bool,
}

/// A service's own record.
#[derive(Clone, Debug)]
pub struct ServiceRow {
    /// The service.
    pub key: ServiceKey,
    /// The metadata.
    pub metadata: Metadata,
    /// The commit that wrote this state.
    pub revision: Revision,
    /// True for a tombstone.
    pub deleted: bool,
    /// Time of creation, like that of an instance.
    pub ctime: i64,
    /// Time of the last change, like that of an instance.
    pub mtime: i64,
}

/// The columns of `instance`, in the order in which every statement names them.
pub(crate) const INSTANCE_COLUMNS: &str = "id, service, host, port, protocol, version, weight, priority, flags, health, \
     ttl, check_spec, region, zone, campus, metadata, digest, rev, deleted, ctime, mtime";

/// The columns of `service`.
pub(crate) const SERVICE_COLUMNS: &str = "id, metadata, rev, deleted, ctime, mtime";

/// Bit of `flags`: isolated by hand.
pub(crate) const ISOLATED: i64 = 1;

/// An instance's columns as read, in the order of [`INSTANCE_COLUMNS`]. Borrowed from the driver's row.
pub(crate) struct Columns<'a> {
    pub(crate) id: &'a str,
    pub(crate) service: &'a str,
    pub(crate) host: &'a str,
    pub(crate) port: i64,
    pub(crate) protocol: &'a str,
    pub(crate) version: &'a str,
    pub(crate) weight: i64,
    pub(crate) priority: i64,
    pub(crate) flags: i64,
    pub(crate) health: i64,
    pub(crate) check_spec: Option<&'a str>,
    pub(crate) region: &'a str,
    pub(crate) zone: &'a str,
    pub(crate) campus: &'a str,
    pub(crate) metadata: &'a str,
    pub(crate) digest: &'a [u8],
    pub(crate) rev: i64,
    pub(crate) deleted: bool,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
}

/// Values common to many rows, each kept in memory once. A set is cleared when it reaches its bound.
#[derive(Debug, Default)]
pub struct Interner {
    texts: HashSet<Arc<str>, foldhash::fast::RandomState>,
    services: HashSet<ServiceKey, foldhash::fast::RandomState>,
    locations: HashSet<Arc<Location>, foldhash::fast::RandomState>,
    checks: HashSet<Arc<Check>, foldhash::fast::RandomState>,
    /// Text of the last check: most rows repeat the previous one's, and a comparison is faster than parsing JSON.
    last_check: Option<(String, Arc<Check>)>,
}

const INTERNED: usize = 16_384;

impl Interner {
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        if self.texts.len() >= INTERNED {
            self.texts.clear();
        }
        let new: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&new));
        new
    }

    fn service(&mut self, text: &str) -> Result<ServiceKey, crate::model::Invalid> {
        if let Some(known) = self.services.get(text) {
            return Ok(known.clone());
        }
        if self.services.len() >= INTERNED {
            self.services.clear();
        }
        let new = ServiceKey::parse(text)?;
        self.services.insert(new.clone());
        Ok(new)
    }

    fn location(&mut self, region: &str, zone: &str, campus: &str) -> Arc<Location> {
        let location = Location { region: self.text(region), zone: self.text(zone), campus: self.text(campus) };
        self.shared_location(location)
    }

    fn shared_location(&mut self, location: Location) -> Arc<Location> {
        if let Some(known) = self.locations.get(&location) {
            return Arc::clone(known);
        }
        if self.locations.len() >= INTERNED {
            self.locations.clear();
        }
        let new = Arc::new(location);
        self.locations.insert(Arc::clone(&new));
        new
    }

    fn check(&mut self, text: &str) -> Result<Arc<Check>, serde_json::Error> {
        if let Some((last, check)) = &self.last_check
            && last == text
        {
            return Ok(Arc::clone(check));
        }
        let check = self.shared_check(Arc::new(serde_json::from_str(text)?));
        self.last_check = Some((text.to_owned(), Arc::clone(&check)));
        Ok(check)
    }

    fn shared_check(&mut self, check: Arc<Check>) -> Arc<Check> {
        if let Some(known) = self.checks.get(&*check) {
            return Arc::clone(known);
        }
        if self.checks.len() >= INTERNED {
            self.checks.clear();
        }
        self.checks.insert(Arc::clone(&check));
        check
    }

    /// Replaces the instance's common values by shared ones.
    pub(crate) fn share(&mut self, instance: &mut Instance) {
        if let Some(known) = self.services.get(instance.service.as_str()) {
            instance.service = known.clone();
        } else {
            if self.services.len() >= INTERNED {
                self.services.clear();
            }
            self.services.insert(instance.service.clone());
        }
        instance.protocol = self.text(&instance.protocol);
        instance.version = self.text(&instance.version);
        instance.location = self.shared_location((*instance.location).clone());
        instance.check = instance.check.take().map(|check| self.shared_check(check));
    }
}

impl Columns<'_> {
    /// Decodes a row. Content that no registry can have written is an error.
    pub(crate) fn decode(&self, store: &'static str, interner: &mut Interner) -> Result<InstanceRow, StoreError> {
        let wrong =
            |reason: &dyn std::fmt::Display| StoreError::corrupt(store, &format!("instance {}", self.id), reason);
        let check = match self.check_spec {
            Some(text) => Some(interner.check(text).map_err(|e| wrong(&e))?),
            None => None,
        };
        let metadata = match self.metadata {
            "{}" => Metadata::default(),
            json => serde_json::from_str(json).map_err(|e| wrong(&e))?,
        };
        let small = |what: &str, value: i64| u16::try_from(value).map_err(|_| wrong(&format!("{what} {value}")));
        let instance = Instance {
            id: InstanceId::parse(self.id).map_err(|e| wrong(&e))?,
            service: interner.service(self.service).map_err(|e| wrong(&e))?,
            host: self.host.into(),
            port: small("port", self.port)?,
            protocol: interner.text(self.protocol),
            version: interner.text(self.version),
            weight: small("weight", self.weight)?,
            priority: small("priority", self.priority)?,
            isolate: self.flags & ISOLATED != 0,
            health: Health::from_code(self.health).ok_or_else(|| wrong(&format!("health {}", self.health)))?,
            location: interner.location(self.region, self.zone, self.campus),
            metadata,
            check,
            digest: Digest::from_slice(self.digest).ok_or_else(|| wrong(&"digest is not 16 bytes"))?,
            revision: revision(self.rev).ok_or_else(|| wrong(&format!("rev {}", self.rev)))?,
            ctime: self.ctime,
            mtime: self.mtime,
            machines: Machines::default(),
        };
        Ok(InstanceRow { instance, deleted: self.deleted })
    }
}

/// Converts a signed column to a revision.
pub(crate) fn revision(rev: i64) -> Option<Revision> {
    u64::try_from(rev).ok().map(Revision)
}

/// Converts a revision to a signed column. Revisions count up from 0 by one for each batch, so they never come near the limit.
pub(crate) fn column(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

impl ServiceRow {
    pub(crate) fn decode(
        store: &'static str,
        (id, metadata, rev, deleted, ctime, mtime): (&str, &str, i64, bool, i64, i64),
    ) -> Result<ServiceRow, StoreError> {
        let wrong = |reason: &dyn std::fmt::Display| StoreError::corrupt(store, &format!("service {id}"), reason);
        Ok(ServiceRow {
            key: ServiceKey::parse(id).map_err(|e| wrong(&e))?,
            metadata: serde_json::from_str(metadata).map_err(|e| wrong(&e))?,
            revision: revision(rev).ok_or_else(|| wrong(&format!("rev {rev}")))?,
            deleted,
            ctime,
            mtime,
        })
    }
}

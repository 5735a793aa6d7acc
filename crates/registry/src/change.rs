//! Changes that build on what was read: read, decide, write only if nobody has written meanwhile, else again.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::RandomState;
use tokio::sync::Mutex;

use crate::error::WriteError;
use crate::model::{Instance, InstanceId, Patch, Registration, Revision};
use crate::registry::{Registry, Written};
use crate::store::{Outcome, Write, WriteKind};

/// What a change makes of an instance.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Make it so. The id must be that of the call.
    Register(Box<Registration>),
    /// Change it in part.
    Patch(Patch),
    /// Take it out.
    Deregister,
    /// Leave it as it is.
    Nothing,
}

/// A change that others are in the way of is tried so often.
const ATTEMPTS: u32 = 64;
/// Locks, shared by all ids.
const STRIPES: usize = 256;

/// Who tries again waits for the others of this node that try again with the same instance: so each of them succeeds in its turn.
#[derive(Debug)]
pub(crate) struct Turns {
    hasher: RandomState,
    stripes: Vec<Mutex<()>>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { hasher: RandomState::default(), stripes: (0..STRIPES).map(|_| Mutex::new(())).collect() }
    }
}

impl Turns {
    fn of(&self, id: &InstanceId) -> &Mutex<()> {
        &self.stripes[(self.hasher.hash_one(id) as usize) % STRIPES]
    }
}

impl Registry {
    /// Carries out what `decide` makes of the instance as it is (`None`: there is none). The write takes effect only if the instance
    /// is still as `decide` saw it; otherwise `decide` is asked again. So of two changes at once none is lost. Where there is no
    /// instance and `decide` refuses, the store is asked once whether there is one.
    ///
    /// # Errors
    /// What `decide` returns; as of any write; `Contended` where others were faster `ATTEMPTS` times.
    pub async fn change<E: From<WriteError>>(
        &self,
        id: &InstanceId,
        mut decide: impl FnMut(Option<&Arc<Instance>>) -> Result<Edit, E>,
    ) -> Result<Written, E> {
        let mut turn = None;
        let mut asked = false;
        for _ in 0..ATTEMPTS {
            let before = self.instance(id);
            let change = match decide(before.as_ref()) {
                Ok(change) => change,
                Err(_) if before.is_none() && !asked => {
                    asked = true;
                    match self.instance_or_ask(id).await {
                        Some(_) => continue,
                        None => decide(None)?,
                    }
                }
                Err(error) => return Err(error),
            };
            let revision = before.as_ref().map_or(Revision(0), |instance| instance.revision);
            let kind = match change {
                Edit::Register(registration) => WriteKind::Register(registration),
                Edit::Patch(patch) => WriteKind::Patch(id.clone(), patch),
                Edit::Deregister => WriteKind::Deregister(id.clone()),
                Edit::Nothing => return Ok(Written { revision, outcome: Outcome::Unchanged }),
            };
            let rows = self.write_checked(vec![Write { kind, expected: Some(revision) }]).await;
            let written = rows.into_iter().next().unwrap_or(Err(WriteError::Stopped))?;
            if written.outcome != Outcome::Superseded {
                return Ok(written);
            }
            if turn.is_none() {
                turn = Some(self.inner().turns.of(id).lock().await);
            }
        }
        Err(WriteError::Contended { what: id.as_str().into(), attempts: ATTEMPTS }.into())
    }
}

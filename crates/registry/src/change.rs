//! Read-modify-write of instances: read, decide, write only if the instance is unchanged, else start over.

use std::sync::Arc;

use crate::error::WriteError;
use crate::model::{Instance, InstanceId, Patch, Registration, Revision};
use crate::registry::{Registry, Written};
use crate::store::{Outcome, Write, WriteKind};

/// The decision of a [`Registry::change`].
#[derive(Clone, Debug)]
pub enum Edit {
    /// Register the instance as given. The id must be that of the call.
    Register(Box<Registration>),
    /// Change single fields.
    Patch(Patch),
    /// Deregister the instance.
    Deregister,
    /// Leave the instance unchanged.
    Nothing,
}

/// Attempts before a contended change fails.
const ATTEMPTS: u32 = 64;

impl Registry {
    /// Calls `decide` with the present instance (`None`: not registered) and carries out its decision. The write takes effect only if the instance is
    /// unchanged since; otherwise `decide` is called again. So of two concurrent changes none is lost. If `decide` refuses an unknown instance, the
    /// store is read once in case the instance is there.
    ///
    /// # Errors
    /// Any error of `decide` or of a write; `Contended` if others were faster `ATTEMPTS` times.
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

//! Verdicts on a store's refusals: one table of every answer that is not the result of a request. Pure.
//!
//! A refusal answers two questions. *Was the request executed?* A region error is no proof that it was not: a command that was proposed to raft is
//! answered `stale_command` when the leader steps down and `region_not_found` when the peer is removed, and may be applied all the same. It matters
//! for one request alone, the commit of the primary key; every other one may be executed twice. *Where is it sent next?* Here, to the peer that was
//! named, or to the peer that PD names.

use std::time::Duration;

use tonic::Code;

use crate::error::Error;
use crate::pd::clip;
use crate::proto::{pdpb, tikvpb};

/// The step of a transaction that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Read,
    Prewrite,
    /// The commit of the primary key: the one request that must not be reported as failed when it may have been executed.
    CommitPrimary,
    CommitSecondary,
    Rollback,
    CheckStatus,
    ResolveLock,
}

/// An answer that is not the result of the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// With the leading peer, if the store knows it.
    NotLeader(Option<pdpb::Peer>),
    RegionNotFound,
    KeyNotInRegion,
    EpochNotMatch,
    /// With the pause that the store requests.
    ServerIsBusy(Duration),
    StaleCommand,
    StoreNotMatch,
    RaftEntryTooLarge,
    MaxTimestampNotSynced,
    ReadIndexNotReady,
    ProposalInMergingMode,
    DataIsNotReady,
    RegionNotInitialized,
    DiskFull,
    RecoveryInProgress,
    FlashbackInProgress,
    FlashbackNotPrepared,
    IsWitness,
    MismatchPeerId,
    BucketVersionNotMatch,
    UndeterminedResult,
    /// A region error that names none of those above: a text alone, or a kind that is newer than this client.
    Unnamed,
    /// gRPC's status in place of an answer.
    Status(Code),
    /// No answer in time.
    Silence,
}

/// The fate of a request, as far as its answer proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// Not executed, and never will be.
    No,
    /// Perhaps executed, or yet to be.
    Unknown,
}

/// The next receiver of a refused request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Next {
    /// The peer of the refused request.
    Here,
    /// Another peer of the region.
    Peer(pdpb::Peer),
    /// The peer that PD names.
    AskPd,
    /// None: the caller gets the error of an unknown outcome, and determines it by reading.
    Undetermined,
    /// None: the request would be refused again.
    Fail,
}

/// Returns the fate of a refused request, and its next receiver.
pub(crate) fn verdict(phase: Phase, refusal: Refusal) -> (Done, Next) {
    use Refusal as R;
    let (done, next) = match refusal {
        R::NotLeader(Some(leader)) => (Done::No, Next::Peer(leader)),
        // Refused before anything was proposed, by a peer that is the wrong one.
        R::NotLeader(None)
        | R::KeyNotInRegion
        | R::EpochNotMatch
        | R::StoreNotMatch
        | R::RegionNotInitialized
        | R::RecoveryInProgress
        | R::IsWitness
        | R::MismatchPeerId
        | R::BucketVersionNotMatch => (Done::No, Next::AskPd),
        // Refused before anything was proposed, for a while.
        R::ServerIsBusy(_)
        | R::MaxTimestampNotSynced
        | R::ReadIndexNotReady
        | R::ProposalInMergingMode
        | R::DataIsNotReady
        | R::DiskFull => (Done::No, Next::Here),
        // Refused before anything was proposed, for good.
        R::RaftEntryTooLarge | R::FlashbackInProgress | R::FlashbackNotPrepared => (Done::No, Next::Fail),
        // Also the answer to a proposed command, which may be applied yet. A commit that is sent again is answered by the outcome of the first.
        R::StaleCommand | R::RegionNotFound => (Done::Unknown, Next::AskPd),
        // The store itself does not know if it will be applied: to send it again proves nothing.
        R::UndeterminedResult | R::Unnamed if phase == Phase::CommitPrimary => (Done::Unknown, Next::Undetermined),
        R::UndeterminedResult | R::Unnamed => (Done::Unknown, Next::AskPd),
        // Sent before the request is read, perhaps by another server that has the store's address now.
        R::Status(Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied) => (Done::No, Next::AskPd),
        // The request may have arrived, and only its answer be lost.
        R::Status(_) | R::Silence => (Done::Unknown, Next::AskPd),
    };
    (if phase == Phase::CommitPrimary { done } else { Done::No }, next)
}

/// Shortest and longest pause that a busy store may ask for, in milliseconds.
const BUSY: (u64, u64) = (20, 1000);

impl Refusal {
    /// Returns the kind of a region error. Where a store sets several, the one that leaves most open.
    pub(crate) fn of(error: &tikvpb::RegionError) -> Refusal {
        let named = [
            (error.undetermined_result, Refusal::UndeterminedResult),
            (error.stale_command, Refusal::StaleCommand),
            (error.region_not_found, Refusal::RegionNotFound),
            (error.key_not_in_region, Refusal::KeyNotInRegion),
            (error.epoch_not_match, Refusal::EpochNotMatch),
            (error.store_not_match, Refusal::StoreNotMatch),
            (error.raft_entry_too_large, Refusal::RaftEntryTooLarge),
            (error.max_timestamp_not_synced, Refusal::MaxTimestampNotSynced),
            (error.read_index_not_ready, Refusal::ReadIndexNotReady),
            (error.proposal_in_merging_mode, Refusal::ProposalInMergingMode),
            (error.data_is_not_ready, Refusal::DataIsNotReady),
            (error.region_not_initialized, Refusal::RegionNotInitialized),
            (error.disk_full, Refusal::DiskFull),
            (error.recovery_in_progress, Refusal::RecoveryInProgress),
            (error.flashback_in_progress, Refusal::FlashbackInProgress),
            (error.flashback_not_prepared, Refusal::FlashbackNotPrepared),
            (error.is_witness, Refusal::IsWitness),
            (error.mismatch_peer_id, Refusal::MismatchPeerId),
            (error.bucket_version_not_match, Refusal::BucketVersionNotMatch),
        ];
        let found = named.into_iter().find_map(|(set, refusal)| set.is_some().then_some(refusal));
        let leader = || error.not_leader.as_ref().map(|not| Refusal::NotLeader(not.leader.filter(|peer| peer.id != 0)));
        let busy = || {
            let busy = error.server_is_busy.as_ref()?;
            Some(Refusal::ServerIsBusy(Duration::from_millis(busy.backoff_ms.clamp(BUSY.0, BUSY.1))))
        };
        found.or_else(leader).or_else(busy).unwrap_or(Refusal::Unnamed)
    }

    /// Returns the refusal's name. The text that the store adds may hold a key.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Refusal::NotLeader(_) => "the store does not lead the region",
            Refusal::RegionNotFound => "the store does not have the region",
            Refusal::KeyNotInRegion => "the key is not in the region",
            Refusal::EpochNotMatch => "the region has changed",
            Refusal::ServerIsBusy(_) => "the store is busy",
            Refusal::StaleCommand => "the region's leader has changed",
            Refusal::StoreNotMatch => "another store has this address",
            Refusal::RaftEntryTooLarge => "the request is larger than the store takes",
            Refusal::MaxTimestampNotSynced => "the region's new leader has no timestamp yet",
            Refusal::ReadIndexNotReady => "the region cannot serve reads yet",
            Refusal::ProposalInMergingMode => "the region is being merged",
            Refusal::DataIsNotReady => "the peer lags behind",
            Refusal::RegionNotInitialized => "the peer is being made",
            Refusal::DiskFull => "the store's disk is full",
            Refusal::RecoveryInProgress => "the region is being recovered",
            Refusal::FlashbackInProgress => "the region is being set back to an earlier time",
            Refusal::FlashbackNotPrepared => "the region is not prepared to be set back to an earlier time",
            Refusal::IsWitness => "the peer is a witness",
            Refusal::MismatchPeerId => "another peer is on the store",
            Refusal::BucketVersionNotMatch => "the region's buckets have changed",
            Refusal::UndeterminedResult => "the store does not know whether it was carried out",
            Refusal::Unnamed => "an error of the region that is not known here",
            Refusal::Status(_) => "an error of the connection",
            Refusal::Silence => "the store does not answer",
        }
    }

    /// Returns the shortest pause before the next try.
    pub(crate) fn pause(self) -> Duration {
        match self {
            Refusal::ServerIsBusy(pause) => pause,
            _ => Duration::ZERO,
        }
    }
}

/// True if the answer to a commit proves that the transaction is not committed, and never will be. An abort proves nothing: it is also the answer to
/// a write that the storage engine did not confirm in time.
pub(crate) fn settles(error: &tikvpb::KeyError) -> bool {
    let gone = error.txn_not_found.is_some() || error.txn_lock_not_found.is_some();
    gone || error.conflict.is_some() || !error.retryable.is_empty()
}

/// Returns the error of a key, other than a lock. Its text may hold the key, so only parts known to hold none are passed on.
pub(crate) fn of_key(error: &tikvpb::KeyError, doing: &'static str) -> Error {
    if error.conflict.is_some() {
        return Error::conflict(doing, "a later transaction has written the same key");
    }
    if error.txn_not_found.is_some() || error.txn_lock_not_found.is_some() {
        return Error::conflict(doing, "another transaction has rolled this one back");
    }
    if !error.retryable.is_empty() {
        return Error::conflict(doing, "the store asks to begin anew");
    }
    if error.locked.is_some() {
        return Error::conflict(doing, "a key is locked");
    }
    if !error.abort.is_empty() {
        return Error::refused(doing, format!("the store has given it up: {}", first_words(&error.abort)));
    }
    Error::refused(doing, "an error of a key that is not known here")
}

/// Returns the first words of a store's message, up to where a key might begin.
pub(crate) fn first_words(message: &str) -> String {
    clip(message).chars().take_while(|c| c.is_alphabetic() || matches!(c, ' ' | '_' | ':')).take(60).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use prost::Message as _;

    use super::*;

    const PHASES: [Phase; 7] = [
        Phase::Read,
        Phase::Prewrite,
        Phase::CommitPrimary,
        Phase::CommitSecondary,
        Phase::Rollback,
        Phase::CheckStatus,
        Phase::ResolveLock,
    ];
    const PEER: pdpb::Peer = pdpb::Peer { id: 3, store_id: 2, role: 0, is_witness: false };

    /// Returns a region error as a store sends it: field `number`, with `content`.
    fn error(number: u8, content: &[u8]) -> tikvpb::RegionError {
        let mut bytes = vec![10, 4, b't', b'e', b'x', b't'];
        let tag = u64::from(number) << 3 | 2;
        prost::encoding::encode_varint(tag, &mut bytes);
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        tikvpb::RegionError::decode(&bytes[..]).unwrap()
    }

    /// Every field of kvproto's `errorpb.Error`, a newer one, and none: the known outcome of a commit of the primary key, and the next step in each
    /// phase.
    #[test]
    fn every_region_error_in_every_phase() {
        use Done::{No, Unknown};
        let leader = [8, 7, 18, 4, 8, 3, 16, 2];
        for (number, content, refusal, done, next) in [
            (2, &leader[..], Refusal::NotLeader(Some(PEER)), No, Next::Peer(PEER)),
            (2, &[8, 7][..], Refusal::NotLeader(None), No, Next::AskPd),
            (3, &[8, 7], Refusal::RegionNotFound, Unknown, Next::AskPd),
            (4, b"\x0a\x03key", Refusal::KeyNotInRegion, No, Next::AskPd),
            (5, &[], Refusal::EpochNotMatch, No, Next::AskPd),
            (6, &[16, 50], Refusal::ServerIsBusy(Duration::from_millis(50)), No, Next::Here),
            (6, &[], Refusal::ServerIsBusy(Duration::from_millis(20)), No, Next::Here),
            (7, &[], Refusal::StaleCommand, Unknown, Next::AskPd),
            (8, &[8, 1, 16, 2], Refusal::StoreNotMatch, No, Next::AskPd),
            (9, &[8, 7], Refusal::RaftEntryTooLarge, No, Next::Fail),
            (10, &[], Refusal::MaxTimestampNotSynced, No, Next::Here),
            (11, &[], Refusal::ReadIndexNotReady, No, Next::Here),
            (12, &[8, 7], Refusal::ProposalInMergingMode, No, Next::Here),
            (13, &[8, 7], Refusal::DataIsNotReady, No, Next::Here),
            (14, &[8, 7], Refusal::RegionNotInitialized, No, Next::AskPd),
            (15, &[8, 7], Refusal::DiskFull, No, Next::Here),
            (16, &[8, 7], Refusal::RecoveryInProgress, No, Next::AskPd),
            (17, &[8, 7], Refusal::FlashbackInProgress, No, Next::Fail),
            (18, &[8, 7], Refusal::FlashbackNotPrepared, No, Next::Fail),
            (19, &[8, 7], Refusal::IsWitness, No, Next::AskPd),
            (20, &[8, 1, 16, 2], Refusal::MismatchPeerId, No, Next::AskPd),
            (21, &[8, 7], Refusal::BucketVersionNotMatch, No, Next::AskPd),
            (22, b"\x0a\x07timeout", Refusal::UndeterminedResult, Unknown, Next::Undetermined),
            (23, &[8, 7], Refusal::Unnamed, Unknown, Next::Undetermined),
            (99, &[], Refusal::Unnamed, Unknown, Next::Undetermined),
        ] {
            let of = Refusal::of(&error(number, content));
            assert_eq!(of, refusal, "field {number}");
            assert!(!of.name().contains("text"), "a store's own words are passed on");
            for phase in PHASES {
                let expected = match (phase, next) {
                    (Phase::CommitPrimary, _) => (done, next),
                    (_, Next::Undetermined) => (No, Next::AskPd),
                    (_, next) => (No, next),
                };
                assert_eq!(verdict(phase, of), expected, "field {number} in {phase:?}");
            }
        }
        assert_eq!(Refusal::of(&tikvpb::RegionError::default()), Refusal::Unnamed);
        // Of two the one that leaves more open.
        let both = tikvpb::RegionError {
            not_leader: Some(tikvpb::NotLeader::default()),
            undetermined_result: Some(tikvpb::Named {}),
            ..tikvpb::RegionError::default()
        };
        assert_eq!(Refusal::of(&both), Refusal::UndeterminedResult);
    }

    /// Errors of the connection prove nothing, unless they are given before a request is read.
    #[test]
    fn every_status_in_every_phase() {
        for code in 0..=16 {
            let code = Code::from_i32(code);
            let refused = matches!(code, Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied);
            for phase in PHASES {
                let open = phase == Phase::CommitPrimary && !refused;
                let expected = (if open { Done::Unknown } else { Done::No }, Next::AskPd);
                assert_eq!(verdict(phase, Refusal::Status(code)), expected, "{code:?} in {phase:?}");
            }
        }
        assert_eq!(verdict(Phase::CommitPrimary, Refusal::Silence), (Done::Unknown, Next::AskPd));
        assert_eq!(verdict(Phase::Prewrite, Refusal::Silence), (Done::No, Next::AskPd));
    }

    /// Errors of a key in the answer to a commit: which of them prove that nothing is committed.
    #[test]
    fn every_error_of_a_key_in_the_answer_to_a_commit() {
        for (number, content, settled) in [
            (1_u8, &[][..], false),
            (2, b"begin anew", true),
            (3, b"KvTimeout", false),
            (4, &[], true),
            (5, &[], false),
            (6, &[], false),
            (8, &[], true),
            (9, &[], false),
            (10, &[], false),
            (11, &[], false),
            (12, &[], true),
            (13, &[], false),
            (14, &[], false),
            (15, &[], false),
        ] {
            let mut bytes = vec![number << 3 | 2, content.len() as u8];
            bytes.extend_from_slice(content);
            let error = tikvpb::KeyError::decode(&bytes[..]).unwrap();
            assert_eq!(settles(&error), settled, "field {number}");
        }
        assert!(!settles(&tikvpb::KeyError::default()));
    }
}

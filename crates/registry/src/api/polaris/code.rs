//! Codes of answers.

use crate::api::ApiError;

pub(in super::super) const OK: u32 = 200_000;
pub(in super::super) const NO_CHANGE: u32 = 200_001;
pub(in super::super) const SAME: u32 = 200_002;
pub(in super::super) const BAD: u32 = 400_000;
pub(in super::super) const UNREADABLE: u32 = 400_001;
pub(in super::super) const EMPTY: u32 = 400_002;
pub(in super::super) const BATCH_TOO_LARGE: u32 = 400_003;
pub(in super::super) const NO_SUCH_RESOURCE: u32 = 400_004;
pub(in super::super) const INVALID: u32 = 400_103;
pub(in super::super) const EMPTY_QUERY: u32 = 400_104;
pub(in super::super) const BAD_QUERY: u32 = 400_105;
pub(in super::super) const BAD_NAMESPACE: u32 = 400_110;
pub(in super::super) const BAD_SERVICE: u32 = 400_120;
pub(in super::super) const BAD_COMMENT: u32 = 400_128;
pub(in super::super) const BAD_HOST: u32 = 400_131;
pub(in super::super) const BAD_ISOLATE: u32 = 400_139;
pub(in super::super) const NO_HEALTH_CHECK: u32 = 400_141;
pub(in super::super) const BAD_METADATA: u32 = 400_150;
pub(in super::super) const BAD_LIMIT_ID: u32 = 400_151;
pub(in super::super) const BAD_AMOUNTS: u32 = 400_153;
pub(in super::super) const BAD_LIMIT_NAME: u32 = 400_154;
pub(in super::super) const BAD_BREAKER_ID: u32 = 400_160;
pub(in super::super) const BAD_BREAKER_NAME: u32 = 400_162;
pub(in super::super) const EXISTS: u32 = 400_201;
pub(in super::super) const NOT_FOUND: u32 = 400_202;
pub(in super::super) const SERVICE_HAS_INSTANCES: u32 = 400_204;
pub(in super::super) const BREAKER_EXISTS: u32 = 400_209;
pub(in super::super) const FULL: u32 = 400_230;
pub(in super::super) const NO_SERVICE: u32 = 400_301;
pub(in super::super) const NO_ROUTING: u32 = 400_302;
pub(in super::super) const NO_INSTANCE: u32 = 400_303;
pub(in super::super) const NO_LIMIT: u32 = 400_307;
pub(in super::super) const NO_BREAKER: u32 = 400_308;
pub(in super::super) const BAD_ROUTING_ID: u32 = 400_700;
pub(in super::super) const BAD_ROUTING_NAME: u32 = 400_702;
pub(in super::super) const BAD_PRIORITY: u32 = 400_703;
pub(in super::super) const NO_SUCH_CONFIG_FILE: u32 = 400_807;
pub(in super::super) const DETECTOR_EXISTS: u32 = 400_903;
pub(in super::super) const UNAUTHORIZED: u32 = 401_000;
pub(in super::super) const NOT_ALLOWED: u32 = 401_001;
pub(in super::super) const CONFLICT: u32 = 409_000;
pub(in super::super) const TOO_MANY: u32 = 429_001;
pub(in super::super) const FAILED: u32 = 500_000;
pub(in super::super) const STORE: u32 = 500_001;

/// Returns the code of an error.
pub(in super::super) fn code_of(error: &ApiError) -> u32 {
    match error {
        ApiError::BadRequest(_)
        | ApiError::Coded { .. }
        | ApiError::Invalid(_)
        | ApiError::UnsupportedMediaType { .. } => INVALID,
        ApiError::NoSuchPath(_) | ApiError::NotImplemented(_) | ApiError::MethodNotAllowed { .. } => NO_SUCH_RESOURCE,
        ApiError::NotFound { .. } | ApiError::Missing(_) => NOT_FOUND,
        ApiError::Unauthorized | ApiError::NoSuchToken => UNAUTHORIZED,
        ApiError::Denied(_) | ApiError::Forbidden { .. } | ApiError::Misdirected { .. } => NOT_ALLOWED,
        ApiError::TooLarge { .. } => BATCH_TOO_LARGE,
        ApiError::Busy { .. } => TOO_MANY,
        ApiError::Conflict(_) => CONFLICT,
        ApiError::BodyTimeout { .. } | ApiError::Undetermined(_) => FAILED,
        ApiError::Unavailable(_) => STORE,
    }
}

/// Returns the code of several outcomes: the common one, or else that of the worst class.
pub(in super::super) fn together(codes: &[u32]) -> u32 {
    match codes {
        [first, rest @ ..] if rest.iter().all(|code| code == first) => *first,
        _ if codes.iter().any(|code| code / 1000 >= 500) => FAILED,
        _ if codes.iter().any(|code| code / 1000 >= 400) => BAD,
        _ => OK,
    }
}

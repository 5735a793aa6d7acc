//! Order of lists: broken items first. Pure.
//!
//! The page sorts its rows in the same way; here the order matters because only the first rows of a long list are sent.

use crate::picture::Service;

/// Returns the rank of a service in a list: 0 first. The list's order decides between equals.
#[must_use]
pub fn service_rank(service: &Service) -> u8 {
    match service {
        // A service without instances is not broken.
        Service { instances: 0, .. } => 3,
        Service { usable: 0, .. } => 0,
        Service { critical: 1.., .. } => 1,
        Service { usable, instances, .. } if usable < instances => 2,
        _ => 3,
    }
}

/// Returns the rank of an instance, by its health, its isolation and its weight.
#[must_use]
pub fn standing_rank(health: &str, isolate: bool, weight: u16) -> u8 {
    match (health, isolate, weight) {
        ("critical", false, _) => 0,
        ("critical", true, _) => 1,
        (_, true, _) => 2,
        ("warning", ..) => 3,
        (_, _, 0) => 4,
        _ => 5,
    }
}

/// Returns the rank of a client, by its state: waiting clients first, then those with a running statement.
#[must_use]
pub fn client_rank(state: &str) -> u8 {
    match state {
        "waiting" => 0,
        "active" => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services() {
        let service = |instances, usable, critical| Service { instances, usable, critical, ..Service::default() };
        let ordered = [
            ("none usable", service(3, 0, 0)),
            ("some critical", service(3, 2, 1)),
            ("some taken out", service(3, 2, 0)),
            ("all usable", service(3, 3, 0)),
        ];
        let ranks: Vec<u8> = ordered.iter().map(|(_, service)| service_rank(service)).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert_eq!(service_rank(&service(0, 0, 0)), service_rank(&service(1, 1, 0)), "an empty one is not broken");
    }

    #[test]
    fn instances() {
        let ordered = [
            ("critical", false, 100),
            ("critical", true, 100),
            ("passing", true, 100),
            ("warning", false, 100),
            ("passing", false, 0),
            ("passing", false, 100),
        ];
        let ranks = ordered.map(|(health, isolate, weight)| standing_rank(health, isolate, weight));
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
    }

    #[test]
    fn clients() {
        let ranks = ["waiting", "active", "idle"].map(client_rank);
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert_eq!(client_rank("login"), client_rank("idle"));
    }
}

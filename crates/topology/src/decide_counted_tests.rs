use super::*;

/// Returns the position of a reader: all transactions below `replayed` have ended there; `reached` is the end of those that it has.
fn reader(replayed: u64, reached: u64) -> Position {
    Position::Standby { replayed: Lsn(replayed), reached: Lsn(reached), late: None, commit_age: None }
}

impl Story {
    fn writer(&mut self, node: u16, id: u64) -> &mut Story {
        self.primary(node, 0, id)
    }

    fn reader(&mut self, node: u16, id: u64) -> &mut Story {
        self.up(node, US, 0, false, reader(id, id))
    }

    fn disowned(&mut self, node: u16) -> &mut Story {
        self.up(node, US, 0, false, Position::Disowned)
    }

    /// Returns a story with writer 0 and readers 1 and 2, all at 1000, each with enough reports.
    fn counting() -> Story {
        let mut story = Story::new(3);
        story.writer(0, 1000).reader(1, 1000).reader(2, 1000);
        story.reader(1, 1000).reader(2, 1000).reader(1, 1000).reader(2, 1000);
        assert_eq!(story.roles(), "P R R");
        assert!(story.term().is_counted());
        story.forget();
        story
    }

    fn term(&self) -> Term {
        self.decision().term
    }
}

#[test]
fn roles_are_found_and_a_term_is_counted() {
    let mut story = Story::new(3);
    assert_eq!(story.writer(0, 10).reader(1, 10).roles(), "- - -", "the third may be the new writer");
    assert_eq!(story.reader(2, 10).roles(), "P R R");
    let term = story.term();
    assert!(term.is_counted() && term.told_timeline() == 0 && term.system == US, "{term:?}");
    assert!(story.decision().tells);
    assert_eq!(story.writer(0, 20).reader(1, 20).term(), term, "nothing has happened");
}

#[test]
fn a_position_counts_from_the_second_answer_in_the_term() {
    let mut story = Story::counting();
    let first = story.term();
    story.dies(0).fails(0);
    assert_eq!(story.roles(), "- R R");
    // A position from before the promotion, and one that may be.
    story.reader(2, 1005).writer(1, 1003);
    assert_eq!(story.roles(), "- P R");
    assert_ne!(story.term(), first);
    assert!(story.was_reset(2), "what it was in the old term means nothing");
    story.forget();
    assert_eq!(story.reader(2, 1006).published(2), [] as [u64; 0]);
    assert_eq!(story.reader(2, 1007).published(2), [1007]);
}

#[test]
fn of_two_that_take_writes_neither_is_primary() {
    let contested = |event: &Event| matches!(event, Event::Contested { .. });
    type Way = fn(&mut Story) -> &mut Story;
    let ways: [(Way, &str, &str); 3] = [
        (|story| story.reader(0, 1010), "R P R", "the old one has become a reader"),
        (|story| story.dies(0), "- P R", "the old one is gone"),
        (|story| story.disowned(0), "s P R", "the old one is disowned"),
    ];
    for (resolve, roles, why) in ways {
        let mut story = Story::counting();
        let first = story.term();
        assert_eq!(story.writer(1, 1010).roles(), "s s R", "{why}");
        assert_eq!(story.writer(0, 1011).writer(1, 1012).roles(), "s s R", "both go on, {why}");
        assert_eq!(story.count(contested), 1, "said once, {why}");
        assert_eq!(resolve(&mut story).roles(), roles, "{why}");
        assert_ne!(story.term(), first, "{why}");
        assert_eq!(story.writer(1, 1013).roles(), roles, "and stays, {why}");
        // A repetition is reported again.
        assert_eq!(story.writer(2, 1014).count(contested), 2, "{why}");
    }
}

#[test]
fn of_two_at_the_start_neither_is_primary() {
    let mut story = Story::new(3);
    story.writer(0, 10).reader(1, 10).writer(2, 12);
    assert_eq!(story.roles(), "s R s");
    assert_eq!(story.fails(0).fails(0).roles(), "- R P");
}

#[test]
fn who_is_disowned_is_never_primary() {
    let mut story = Story::counting();
    assert_eq!(story.disowned(0).roles(), "s R R");
    assert_eq!(story.count(|event| matches!(event, Event::Disowned { .. })), 1);
    assert_eq!(story.disowned(0).count(|event| matches!(event, Event::Disowned { .. })), 1, "said once");
    assert_eq!(story.writer(0, 1001).roles(), "P R R", "and owned again");
}

#[test]
fn a_node_without_timelines_is_no_primary_where_others_have_them() {
    let mut story = Story::new(2);
    story.standby(0, 3, 10).writer(1, 10);
    assert_eq!(story.roles(), "R s");
    // The positions of the two are not compared either.
    let mut story = Story::running();
    story.up(1, US, 0, true, reader(5000, 5000)).reader(1, 5000).reader(1, 5000);
    assert_eq!((story.roles().as_str(), story.published(1)), ("P R R", vec![]));
}

#[test]
fn a_new_session_with_the_writer_is_a_new_term() {
    let mut story = Story::counting();
    let first = story.term();
    story.up(0, US, 0, true, Position::Primary { lsn: Lsn(900) });
    assert_eq!(story.roles(), "P R R");
    assert_ne!(story.term(), first, "it may have been restarted with less");
    assert!(story.was_reset(1));
    story.forget();
    assert_eq!(story.reader(1, 900).reader(1, 901).published(1), [901]);
}

#[test]
fn an_open_transaction_holds_back_what_is_promised_and_makes_no_lag() {
    let mut story = Story::counting();
    for second in 1..40 {
        story.later(SECOND).writer(0, 1000 + second).up(1, US, 0, false, reader(1000, 1000 + second));
    }
    assert_eq!(story.roles(), "P R R");
    assert_eq!(story.published(1).last(), Some(&1000), "the first of the open ones");
    // The other one is stuck.
    story.up(2, US, 0, false, reader(1000, 1000));
    assert_eq!(story.roles(), "P R r");
    assert_eq!(story.decision().nodes[2].lag.bytes, 0, "ids are not bytes");
}

#[test]
fn the_servers_own_word_of_a_lag_counts_if_it_is_more() {
    let mut story = Story::counting();
    let late = |late| Position::Standby { replayed: Lsn(1000), reached: Lsn(1000), late, commit_age: None };
    for (said, roles) in [(Some(SECOND * 11), "P r R"), (Some(SECOND), "P R R"), (None, "P R R")] {
        assert_eq!(story.up(1, US, 0, false, late(said)).roles(), roles, "{said:?}");
    }
}

#[test]
fn servers_that_tell_only_their_roles_publish_nothing() {
    let mut story = Story::new(2);
    story.writer(0, 0).reader(1, 0).reader(1, 0).reader(1, 0);
    assert_eq!(story.roles(), "P R");
    assert!(!story.decision().tells);
    assert_eq!(story.published(1), [] as [u64; 0]);
    story.later(SECOND * 600).writer(0, 0).reader(1, 0);
    assert_eq!(story.roles(), "P R", "no lag is known");
}

#[test]
fn other_numbers_forget_what_was_said_by_the_ones_before() {
    let mut story = Story::running();
    let other = Limits { positions: Positions::Transactions, ..limits() };
    let decision = story.decider.reconfigure(other, &[Some(1); 3], &[], story.now);
    assert_eq!(decision.primary, None);
    story.writer(0, 50).reader(1, 50).reader(2, 50);
    assert_eq!(story.roles(), "P R R");
    assert!(story.term().is_counted());
}

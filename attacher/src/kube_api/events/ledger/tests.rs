use super::*;

/// A ledger with its clocks.
struct Fixture {
    ledger: Ledger,
    now: Instant,
    seconds: i64,
}

// === impl Fixture ===

impl Fixture {
    fn new() -> Self {
        Self {
            ledger: Ledger::default(),
            now: tokio::time::Instant::now().into_std(),
            seconds: 1_700_000_000,
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.seconds += i64::try_from(time.as_secs()).unwrap();
    }

    fn note(&mut self, object: &str, reason: Reason, message: &str) {
        let at = Timestamp::from_second(self.seconds).unwrap();
        let notice = Notice {
            regarding: mk_object(object),
            reason,
            message: message.to_owned(),
        };
        self.ledger.note(notice, at, self.now);
    }

    fn fail(&mut self, object: &str, message: &str) {
        self.note(object, Reason::AttachFailed, message);
    }

    /// Everything that is due now, successfully written.
    fn write(&mut self) -> Vec<Write> {
        let writes: Vec<_> = std::iter::from_fn(|| {
            let write = self.ledger.start(self.now)?;
            self.ledger.done(&write);
            Some(write)
        })
        .collect();
        assert!(self.ledger.next_due(self.now).is_none_or(|due| due > self.now));
        writes
    }
}

fn mk_object(name: &str) -> Regarding {
    Regarding {
        api_version: "storage.k8s.io/v1",
        kind: "VolumeAttachment",
        namespace: None,
        name: name.into(),
        uid: Uid(format!("uid-{name}").into()),
    }
}

fn told(writes: &[Write]) -> Vec<(&str, &str, u32, bool)> {
    writes
        .iter()
        .map(|write| {
            let Notice {
                regarding, message, ..
            } = &write.notice;
            (&*regarding.name, message.as_str(), write.count, write.is_new())
        })
        .collect()
}

#[test]
fn a_failure_that_repeats_is_one_event_that_counts() {
    let mut fixture = Fixture::new();
    fixture.fail("va", "no");
    let first = fixture.write();
    assert_eq!(told(&first), [("va", "no", 1, true)]);
    for _ in 0..4 {
        fixture.pass(Duration::from_secs(1));
        fixture.fail("va", "no");
        assert_eq!(fixture.write(), []);
    }
    assert_eq!(
        fixture.ledger.next_due(fixture.now),
        Some(fixture.now + FOLD - Duration::from_secs(4))
    );
    fixture.pass(FOLD);
    let counted = fixture.write();
    assert_eq!(told(&counted), [("va", "no", 5, false)]);
    assert_eq!(counted[0].name(), first[0].name());
    assert_eq!(counted[0].first, first[0].first);
    assert!(counted[0].last > counted[0].first);
    fixture.pass(FOLD);
    assert_eq!(fixture.write(), [], "what was told is not told again");
}

#[test]
fn other_words_and_other_objects_are_other_events() {
    let mut fixture = Fixture::new();
    fixture.fail("va", "no");
    fixture.fail("other", "no");
    fixture.write();
    fixture.pass(Duration::from_secs(1));
    fixture.fail("va", "why");
    fixture.note("va", Reason::AttachRecovered, "yes");
    assert_eq!(
        told(&fixture.write()),
        [("va", "why", 1, true), ("va", "yes", 1, true)]
    );
}

#[test]
fn an_object_with_ever_new_words_is_kept_to_its_budget() {
    let mut fixture = Fixture::new();
    let mut events = 0;
    for attempt in 0..100 {
        fixture.fail("va", &format!("request {attempt} refused"));
        events += fixture.write().iter().filter(|write| write.is_new()).count();
        fixture.pass(Duration::from_millis(100));
    }
    assert_eq!(events, usize::try_from(OBJECT_BURST).unwrap());
    fixture.pass(FOLD);
    let last = fixture.write();
    assert_eq!(told(&last)[0].1, "request 99 refused");
    assert_eq!(last[0].count, 100 - OBJECT_BURST + 1);
    // It comes back with time.
    fixture.pass(OBJECT_REFILL);
    fixture.fail("va", "again");
    assert_eq!(told(&fixture.write()), [("va", "again", 1, true)]);
}

#[test]
fn all_objects_together_are_kept_to_a_budget() {
    let mut fixture = Fixture::new();
    for object in 0..200 {
        fixture.fail(&format!("va-{object}"), "no");
    }
    let burst = usize::try_from(BURST).unwrap();
    let count = |fixture: &mut Fixture| std::iter::from_fn(|| fixture.ledger.start(fixture.now)).count();
    assert_eq!(count(&mut fixture), burst);
    assert_eq!(fixture.ledger.next_due(fixture.now), Some(fixture.now + REFILL));
    fixture.pass(Duration::from_secs(1));
    assert_eq!(count(&mut fixture), 10);
    fixture.pass(Duration::from_secs(60));
    assert_eq!(count(&mut fixture), burst);
}

#[test]
fn a_lost_event_is_made_anew() {
    let mut fixture = Fixture::new();
    fixture.fail("va", "no");
    let write = fixture.ledger.start(fixture.now).unwrap();
    fixture.ledger.lost(&write);
    fixture.fail("va", "no");
    fixture.pass(FOLD);
    assert_eq!(told(&fixture.write()), [("va", "no", 2, true)]);

    // The API server has forgotten it meanwhile.
    fixture.pass(FOLD);
    fixture.fail("va", "no");
    let write = fixture.ledger.start(fixture.now).unwrap();
    assert!(!write.is_new());
    fixture.ledger.anew(&write, fixture.now);
    assert_eq!(told(&fixture.write()), [("va", "no", 3, true)]);
}

#[test]
fn memory_is_bounded_and_those_who_wait_are_not_forgotten() {
    let mut fixture = Fixture::new();
    for object in 0..OBJECTS + 10 {
        fixture.fail(&format!("va-{object}"), "no");
    }
    assert_eq!(fixture.ledger.objects.len(), OBJECTS);
    assert_eq!(fixture.ledger.take_dropped(), 10, "all of them wait to be told");
    fixture.pass(Duration::from_secs(3600));
    let mut written = 0;
    while fixture.ledger.start(fixture.now).is_some() {
        written += 1;
        fixture.pass(REFILL * 2);
    }
    assert_eq!(written, OBJECTS);
    fixture.fail("new", "no");
    assert!(fixture.ledger.objects.len() <= OBJECTS);
    assert_eq!(told(&fixture.write()), [("new", "no", 1, true)]);
}

#[test]
fn an_object_that_is_gone_is_forgotten_when_all_is_told() {
    let mut fixture = Fixture::new();
    let uid = mk_object("va").uid;
    fixture.fail("va", "no");
    fixture.ledger.forget(&uid);
    assert_eq!(told(&fixture.write()), [("va", "no", 1, true)]);
    fixture.ledger.forget(&uid);
    assert!(fixture.ledger.objects.is_empty() && fixture.ledger.due.is_empty());
}

#[test]
fn what_failed_long_ago_is_another_story() {
    let mut fixture = Fixture::new();
    fixture.fail("va", "no");
    fixture.write();
    fixture.pass(IDLE);
    fixture.fail("va", "no");
    assert_eq!(told(&fixture.write()), [("va", "no", 1, true)]);
}

#[test]
fn messages_and_names_fit_the_api_server() {
    let mut fixture = Fixture::new();
    let long = format!("{}-", "x".repeat(235)) + &"y".repeat(17);
    fixture.fail(&long, &format!("a{}", "é".repeat(1000)));
    let write = fixture.write().remove(0);
    assert_eq!(write.notice.message.len(), 1023);
    assert!(write.name().len() <= 253);
    assert!(write.name().starts_with("xxx") && !write.name().contains("-."));
    assert_eq!(&*write.namespace(), "default");
}

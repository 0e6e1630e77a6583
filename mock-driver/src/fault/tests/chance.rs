//! Draws: which calls fire by chance, and drawn delays.

use super::*;

#[test]
fn reverted_draw_goes_to_the_next_call() {
    const RULE: &str = "- {id: x, match: {probability: 0.5}, phase: after, action: {code: INTERNAL}}";
    let call = Publish::of("a");
    let fires = |faults: &Faults| {
        faults
            .decide(&call)
            .rule
            .is_some_and(|fired| faults.apply(fired).is_some())
    };
    for seed in 1..=20 {
        let undisturbed = mk_seeded(RULE, seed);
        let want: Vec<bool> = (0..10).map(|_| fires(&undisturbed)).collect();
        let Some(first) = want.iter().position(|fires| *fires) else {
            continue;
        };
        let faults = mk_seeded(RULE, seed);
        for _ in 0..first {
            assert!(!fires(&faults));
        }
        // One call has its chance, the next one, too, and then the first fails by itself.
        let failing = faults.decide(&call).rule.unwrap();
        let mut got = vec![false; first];
        let next = fires(&faults);
        drop(failing);
        got.push(fires(&faults));
        got.push(next);
        got.extend((first + 2..10).map(|_| fires(&faults)));
        assert_eq!(got, want, "seed {seed}");
    }
}

#[test]
fn draws_depend_on_seed_and_volume_only_and_keep_their_rate() {
    let yaml = "- {id: x, match: {probability: 0.1}, action: {code: ABORTED}}";
    let volumes = || (0..200_u32).flat_map(|n| (0..20).map(move |_| Publish::of(&format!("vol-{n}"))));
    let fates = |seed: u64, calls: Vec<Publish>| {
        let faults = mk_seeded(yaml, seed);
        let mut fates: BTreeMap<String, Vec<bool>> = BTreeMap::new();
        for call in calls {
            let fired = faults.decide(&call).rule.is_some();
            fates.entry(call.volume).or_default().push(fired);
        }
        fates
    };
    let in_order = fates(7, volumes().collect());
    // The same calls for each volume, the volumes taking turns the other way round.
    let mut mixed: Vec<Publish> = Vec::new();
    for _ in 0..20 {
        mixed.extend((0..200).rev().map(|n| Publish::of(&format!("vol-{n}"))));
    }
    assert_eq!(in_order, fates(7, mixed));
    assert_ne!(in_order, fates(8, volumes().collect()));
    let hits = in_order.values().flatten().filter(|fired| **fired).count();
    assert!((340..=460).contains(&hits), "{hits} of 4000");

    let own = "- {id: x, match: {probability: 0.5, seed: 3}, action: {code: ABORTED}}";
    let run = |seed| fired(&mk_seeded(own, seed), (0..50).map(|_| Publish::of("a")));
    assert_eq!(run(1), run(2), "a seed of its own");
}

#[test]
fn drawn_delays_repeat_with_the_seed() {
    let yaml = "- {id: x, match: {method: '*'}, action: {delay: {uniform: [1s, 2s]}}}";
    let delays = |seed| -> Vec<Duration> {
        let faults = mk_seeded(yaml, seed);
        (0..20)
            .map(|_| faults.decide(&Publish::of("a")).rule.unwrap().delay)
            .collect()
    };
    assert_eq!(delays(1), delays(1));
    assert_ne!(delays(1), delays(2));
    assert!(
        delays(1).windows(2).any(|pair| pair[0] != pair[1]),
        "each call has its own"
    );
}

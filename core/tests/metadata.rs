//! Metadata is typed, found by name, computed only on request, and passes through wrappers and
//! compositions.

#[path = "support/limiters.rs"]
mod limiters;

use core::cell::Cell;
use core::time::Duration;

use limiters::Denial;
use portcullis_core::keyed::ConcurrencyRules;
use portcullis_core::keyed::{Line, Seed};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::metadata::{self, Name, REASON_PHRASE, RETRY_AFTER, USED_SHARE, Used};
use portcullis_core::{
    AllOf, Concurrency, Counted, Denied, FixedWindow, Limiter, LimiterExt, Rate, Retry,
    SlidingWindow, Timestamp, TokenBucket, Unlimited,
};
#[cfg(feature = "std")]
use portcullis_core::{Keyed, KeyedArray};

const NOW: Timestamp = Timestamp::from_secs(100);
const SECOND: Duration = Duration::from_secs(1);

/// A user's name.
const TENANT: Name<&'static str> = Name::new("com.example.TENANT");
/// Another type under the same text.
const TENANT_NUMBER: Name<u32> = Name::new("com.example.TENANT");

/// Adds the name of its tenant to the metadata of its limiter.
struct Tenant<L> {
    name: &'static str,
    limiter: L,
    asked: Cell<u32>,
}

impl<L> Tenant<L> {
    fn new(name: &'static str, limiter: L) -> Self {
        Self {
            name,
            limiter,
            asked: Cell::new(0),
        }
    }
}

impl<L: Limiter> Limiter for Tenant<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.limiter.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Refund {
                permits, receipt, ..
            } => {
                self.release(permits);
                receipt.refunded(0).into()
            }
            back => self.limiter.give_back(back),
        }
    }
    fn read(&self, mut read: Read<'_>) -> Reading {
        read.offer(TENANT, || {
            self.asked.set(self.asked.get() + 1);
            self.name
        });
        self.limiter.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }
}

/// A composition by hand: both limiters must grant a request.
struct Both<A, B>(A, B);

impl<A: Limiter, B: Limiter> Limiter for Both<A, B> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        self.take(now, n).into()
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits: n } => {
                self.1.release(n);
                self.0.release(n);
                Returned::NOTHING
            }
            Back::Refund {
                permits, receipt, ..
            } => {
                self.release(permits);
                receipt.refunded(0).into()
            }
            _ => Returned::NOTHING,
        }
    }
    fn read(&self, mut read: Read<'_>) -> Reading {
        if let Some(denied) = read.denied() {
            read.offer(RETRY_AFTER, || self.retry(denied));
        }
        let (one, other) = (self.0.read(read.by_ref()), self.1.read(read));
        Reading {
            available: one.available.min(other.available),
            capacity: one.capacity.min(other.capacity),
            idle: Idle::InUse,
            held: one.held.max(other.held),
        }
    }
    /// Whichever is ready later.
    fn retry(&self, denied: Denied) -> Retry {
        match (self.0.retry(denied), self.1.retry(denied)) {
            (Retry::At(a), Retry::At(b)) => Retry::At(a.max(b)),
            (Retry::At(_), other) | (other, _) => other,
        }
    }
}

impl<A: Limiter, B: Limiter> Both<A, B> {
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let _receipt = self.0.take_at(now, n)?;
        self.1.take_at(now, n).inspect_err(|_| self.0.release(n))
    }
}

#[test]
fn every_limiter_offers_retry_reason_and_use_for_a_denial_and_only_use_for_a_grant() {
    let permits = Concurrency::new(4);
    let (bucket, window) = (
        TokenBucket::new(Rate::per_second(2), 4),
        FixedWindow::new(4, SECOND),
    );
    let segments = SlidingWindow::<4>::new(4, SECOND, 4);
    let half = Timestamp::from_millis(100_500);
    let cases: [(&dyn Limiter, Retry); 4] = [
        (&permits, Retry::OnRelease),
        (&bucket, Retry::At(half)),
        (&window, Retry::At(Timestamp::from_secs(101))),
        (&segments, Retry::At(Timestamp::from_secs(101))),
    ];
    let all = limiters::limited::<u64>(4, SECOND);
    // Limiters for which a denial has an effect answer differently after it.
    let others = all
        .iter()
        .filter(|(kind, _)| kind.denial != Denial::acts)
        .map(|(_, limiter)| (&**limiter as &dyn Limiter, None));
    let cases = cases.map(|(limiter, retry)| (limiter, Some(retry)));
    for (limiter, retry) in cases.into_iter().chain(others) {
        let _lease = limiter.try_acquire_at(NOW, 3).unwrap();
        assert_eq!(
            USED_SHARE.of_granted(limiter, NOW),
            Some(Used {
                permits: 3,
                capacity: 4
            })
        );
        assert_eq!(RETRY_AFTER.of_granted(limiter, NOW), None);
        assert_eq!(REASON_PHRASE.of_granted(limiter, NOW), None);
        assert!(metadata::names(limiter, NOW, None).eq(["USED_SHARE"]));

        let denied = limiter.try_acquire_at(NOW, 2).unwrap_err();
        let retry = retry.unwrap_or_else(|| limiter.retry(denied));
        assert_eq!(RETRY_AFTER.of_denied(limiter, NOW, denied), Some(retry));
        assert_eq!(
            REASON_PHRASE.of_denied(limiter, NOW, denied),
            Some("not enough permits available")
        );
        assert_eq!(
            USED_SHARE.of_denied(limiter, NOW, denied),
            Some(Used {
                permits: 3,
                capacity: 4
            })
        );
        let names = ["RETRY_AFTER", "REASON_PHRASE", "USED_SHARE"];
        assert!(metadata::names(limiter, NOW, Some(denied)).eq(names));

        let never = limiter.try_acquire_at(NOW, 5).unwrap_err();
        assert_eq!(
            RETRY_AFTER.of_denied(limiter, NOW, never),
            Some(Retry::Never)
        );
        assert_ne!(
            REASON_PHRASE.of_denied(limiter, NOW, never),
            REASON_PHRASE.of_denied(limiter, NOW, denied)
        );
    }
}

#[test]
fn a_users_name_passes_through_a_wrapper() {
    let limiter = Counted::new(Tenant::new("alice", Concurrency::new(1)));
    assert_eq!(TENANT.of_granted(&limiter, NOW), Some("alice"));
    let _lease = limiter.try_acquire_at(NOW, 1).unwrap();
    let denied = limiter.try_acquire_at(NOW, 1).unwrap_err();
    assert_eq!(TENANT.of_denied(&limiter, NOW, denied), Some("alice"));
    assert_eq!(
        RETRY_AFTER.of_denied(&limiter, NOW, denied),
        Some(Retry::OnRelease),
        "the inner limiter offers it"
    );
    let names = [
        "com.example.TENANT",
        "RETRY_AFTER",
        "REASON_PHRASE",
        "USED_SHARE",
    ];
    assert!(metadata::names(&limiter, NOW, Some(denied)).eq(names));
    assert_eq!(
        TENANT.of_granted(&Concurrency::new(1), NOW),
        None,
        "not offered"
    );
}

#[test]
fn a_name_is_its_text_and_its_type() {
    let limiter = Tenant::new("alice", Unlimited);
    assert_eq!(
        TENANT_NUMBER.of_granted(&limiter, NOW),
        None,
        "a wrong type under the same text"
    );
    let same: Name<&'static str> = Name::new("com.example.TENANT");
    assert_eq!(
        same.of_granted(&limiter, NOW),
        Some("alice"),
        "created elsewhere"
    );
    assert_eq!(limiter.asked.get(), 1);
}

#[test]
fn values_are_computed_only_on_request() {
    let limiter = Tenant::new("alice", Unlimited);
    let _ = USED_SHARE.of_granted(&limiter, NOW);
    assert_eq!(metadata::names(&limiter, NOW, None).count(), 2);
    assert_eq!(limiter.asked.get(), 0);
    let _ = TENANT.of_granted(&limiter, NOW);
    assert_eq!(limiter.asked.get(), 1);
}

#[test]
fn the_first_offer_of_a_name_wins_and_the_second_is_not_computed() {
    let limiter = Tenant::new("outer", Tenant::new("inner", Unlimited));
    assert_eq!(TENANT.of_granted(&limiter, NOW), Some("outer"));
    assert_eq!(limiter.limiter.asked.get(), 0);
    assert!(
        metadata::names(&limiter, NOW, None).eq(["com.example.TENANT", "USED_SHARE"]),
        "each name once"
    );
}

#[test]
fn a_composition_by_hand_unites_the_metadata_of_both() {
    const REGION: Name<u32> = Name::new("com.example.REGION");
    struct Region(Unlimited);
    impl Limiter for Region {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            self.0.decide(ask)
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, mut read: Read<'_>) -> Reading {
            read.offer(REGION, || 7);
            read.offer(TENANT, || "nobody");
            self.0.read(read)
        }

        fn retry(&self, denied: Denied) -> Retry {
            self.0.retry(denied)
        }
    }
    let limiter = Both(Tenant::new("alice", Concurrency::new(3)), Region(Unlimited));
    assert_eq!(
        TENANT.of_granted(&limiter, NOW),
        Some("alice"),
        "the first wins"
    );
    assert_eq!(
        REGION.of_granted(&limiter, NOW),
        Some(7),
        "the second is asked"
    );
    assert!(metadata::names(&limiter, NOW, None).eq([
        "com.example.TENANT",
        "com.example.REGION",
        "USED_SHARE"
    ]));
}

/// Whichever limiter denied, the retry is that of the composition.
#[test]
fn a_composition_says_when_both_are_ready() {
    let limiter = Both(
        TokenBucket::new(Rate::per_second(1), 2),
        FixedWindow::new(1, Duration::from_secs(10)),
    );
    let _lease = limiter.try_acquire_at(NOW, 1).unwrap();
    let denied = limiter.try_acquire_at(NOW, 1).unwrap_err();
    assert_eq!(
        RETRY_AFTER.of_denied(&limiter, NOW, denied),
        Some(Retry::At(Timestamp::from_secs(110)))
    );
    let object: &dyn Limiter = &limiter;
    assert_eq!(
        RETRY_AFTER.of_denied(object, NOW, denied),
        Some(Retry::At(Timestamp::from_secs(110)))
    );
    assert!(metadata::names(object, NOW, Some(denied)).eq([
        "RETRY_AFTER",
        "REASON_PHRASE",
        "USED_SHARE"
    ]));
}

/// Offers one name for its own denials only, and another one always.
struct Plan<L>(&'static str, L);

const BLOCKED_BY: Name<&str> = Name::new("com.example.BLOCKED_BY");

impl<L: Limiter> Limiter for Plan<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.1.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Refund {
                permits, receipt, ..
            } => {
                self.release(permits);
                receipt.refunded(0).into()
            }
            back => self.1.give_back(back),
        }
    }
    fn read(&self, mut read: Read<'_>) -> Reading {
        let denied = read.denied();
        read.offer(TENANT, || self.0);
        if denied.is_some() {
            read.offer(BLOCKED_BY, || self.0);
            read.offer(REASON_PHRASE, || self.0);
        }
        self.1.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.1.retry(denied)
    }
}

/// For a grant, in order; for a denial, the limit that denied first is asked first.
#[test]
fn a_composition_offers_what_each_of_its_limits_offers() {
    let fast = Plan("fast", TokenBucket::new(Rate::per_second(1), 2));
    let slow = Plan("slow", FixedWindow::new(3, Duration::from_secs(10)));
    let all = AllOf::new((Unlimited, &fast, &slow, Tenant::new("last", Unlimited)));
    assert_eq!(
        TENANT.of_granted(&all, NOW),
        Some("fast"),
        "the first that offers it"
    );
    assert_eq!(BLOCKED_BY.of_granted(&all, NOW), None);
    assert_eq!(
        USED_SHARE.of_granted(&all, NOW),
        Some(Used {
            permits: 0,
            capacity: 2
        }),
        "of the whole composition"
    );
    assert!(metadata::names(&all, NOW, None).eq(["USED_SHARE", "com.example.TENANT"]));

    // The fast one denies, then both, and then only the slow one.
    let later = Timestamp::from_secs(102);
    for (now, n, by, retry) in [
        (NOW, 2, None, 0),
        (NOW, 1, Some("fast"), 101),
        (later, 2, Some("slow"), 110),
    ] {
        let answer = LimiterExt::try_acquire_at(&all, now, n);
        assert_eq!(answer.is_err(), by.is_some());
        let Err(denied) = answer else { continue };
        assert_eq!(BLOCKED_BY.of_denied(&all, now, denied), by);
        assert_eq!(TENANT.of_denied(&all, now, denied), by);
        assert_eq!(
            REASON_PHRASE.of_denied(&all, now, denied),
            by,
            "the limit's own value"
        );
        assert_eq!(
            RETRY_AFTER.of_denied(&all, now, denied),
            Some(Retry::At(Timestamp::from_secs(retry)))
        );
        assert!(metadata::names(&all, now, Some(denied)).eq([
            "RETRY_AFTER",
            "USED_SHARE",
            "com.example.TENANT",
            "com.example.BLOCKED_BY",
            "REASON_PHRASE"
        ]));
    }
    // A composition inside another one, and a wrapped one, offer theirs as well.
    let whole = Counted::new(AllOf::new([&all, &all]));
    assert_eq!(TENANT.of_granted(&whole, NOW), Some("fast"));
    // The limits as they are now do not deny it: the composition offers what none of them does.
    let denied = Denied::Exhausted {
        now: later,
        permits: 1,
    };
    assert_eq!(
        REASON_PHRASE.of_denied(&all, later, denied),
        Some("not enough permits available")
    );
    assert_eq!(
        (
            TENANT.of_denied(&all, later, denied),
            BLOCKED_BY.of_denied(&all, later, denied)
        ),
        (Some("fast"), None)
    );
}

/// The limit that denied gives the reason and is named first, not a limit before it that would not
/// deny.
#[test]
fn a_denial_of_a_limit_that_is_named_twice_covers_the_sum_asked_of_it() {
    let limit = Plan("twice", TokenBucket::new(Rate::per_second(1), 3));
    let counted = Counted::new(&limit.1);
    let all = AllOf::new((Plan("first", Unlimited), &counted, &counted, &limit));
    let denied = LimiterExt::try_acquire_at(&all, NOW, 2).unwrap_err();
    assert_eq!(
        REASON_PHRASE.of_denied(&all, NOW, denied),
        Some("more permits than the limiter can hold")
    );
    assert_eq!(
        TENANT.of_denied(&all, NOW, denied),
        Some("first"),
        "of the limits that offer it, in order"
    );
    assert_eq!(BLOCKED_BY.of_denied(&all, NOW, denied), None);
}

/// Through references, boxes and objects alike.
#[test]
fn handles_offer_what_their_limiter_offers() {
    let limiter = Tenant::new("alice", Unlimited);
    assert_eq!(TENANT.of_granted(&&limiter, NOW), Some("alice"));
    let object: &dyn Limiter = &limiter;
    assert_eq!(TENANT.of_granted(&object, NOW), Some("alice"));
    let wrapped = Tenant::new("bob", object);
    assert_eq!(TENANT.of_granted(&wrapped, NOW), Some("bob"));
}

/// A key offers the metadata of its own limiter, if it has one.
#[cfg(feature = "std")]
#[test]
fn a_key_offers_what_its_limiter_offers() {
    let table = KeyedArray::for_keys(|| Tenant::new("alice", Concurrency::new(1)), 1);
    let key = table.key("alice");
    assert_eq!(TENANT.of_granted(&*key, NOW), Some("alice"));
    let _lease = key.try_acquire_at(NOW, 1).unwrap();
    let denied = key.try_acquire_at(NOW, 1).unwrap_err();
    assert_eq!(TENANT.of_denied(&*key, NOW, denied), Some("alice"));
    assert_eq!(
        RETRY_AFTER.of_denied(&*key, NOW, denied),
        Some(Retry::OnRelease)
    );
    let crowded = Denied::Crowded {
        now: NOW,
        permits: 1,
    };
    assert_eq!(TENANT.of_denied(&*key, NOW, crowded), None);
    assert_eq!(
        RETRY_AFTER.of_denied(&*key, NOW, crowded),
        Some(Retry::After(Duration::from_secs(1)))
    );
    let one_word = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1), Seed::new());
    assert!(
        metadata::names(&*one_word.key("alice"), NOW, Some(denied)).eq([
            "RETRY_AFTER",
            "REASON_PHRASE",
            "USED_SHARE"
        ])
    );
}

#[test]
fn any_number_of_names_is_listed() {
    struct Many;
    impl Limiter for Many {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            if ask.is_look() {
                return ask.looked(self.available_at(ask.now()), || u64::MAX);
            }
            Answer::Granted(Receipt::NONE)
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, mut read: Read<'_>) -> Reading {
            for text in ["a", "b", "a", "c", "b", "d"] {
                read.offer(Name::<u8>::new(text), || 0);
            }
            Reading {
                available: 1,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: Denied) -> Retry {
            Retry::Never
        }
    }
    struct Silent;
    impl Limiter for Silent {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            if ask.is_look() {
                return ask.looked(self.available_at(ask.now()), || u64::MAX);
            }
            Answer::Granted(Receipt::NONE)
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, _: Read<'_>) -> Reading {
            Reading {
                available: 1,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: Denied) -> Retry {
            Retry::Never
        }
    }
    assert!(metadata::names(&Many, NOW, None).eq(["a", "b", "c", "d", "USED_SHARE"]));
    assert!(metadata::names(&Silent, NOW, None).eq(["USED_SHARE"]));
}

//! Requests are matched without an allocation, whatever their text is.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;

use core::hint::black_box;
use core::ops::ControlFlow;

use allocations::allocations;
use portcullis_policy::{Conditions, Matcher, PathRules, Request};

#[test]
fn an_allocation_is_counted() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
}

#[test]
fn a_match_allocates_nothing() {
    let conditions = [
        Conditions::new()
            .paths(["/a/**/b/*/**/c", "/**/x/**/y/**"])
            .methods(["GET"]),
        Conditions::new()
            .hosts(["*.example.com", "10.0.0.0/8"])
            .property("region", ["eu"]),
        Conditions::new().paths(["/**"]).tiers(["free"]),
    ];
    let matcher = Matcher::new(&conditions, PathRules::new().ignoring_case()).unwrap();
    let deep = "/a".repeat(256);
    let long = format!("/%61{}", "b".repeat(8_000));
    let paths = [
        "",
        "/A/%62/../b/q//c?x",
        "/a/b/q/c/x/y",
        "%",
        "/a/b/c",
        &deep,
        &long,
    ];
    let mut found = 0;
    let count = allocations(|| {
        for path in paths {
            for host in ["API.Example.com:443", "[::1]:80", "a.b.c.d.e.f", ""] {
                let request = Request::new("GET", path)
                    .host(host)
                    .address("10.1.2.3".parse().unwrap())
                    .properties(&[("Region", "eu")])
                    .tier("free");
                let visited = matcher.visit(&request, |_| {
                    found += 1;
                    ControlFlow::Continue(())
                });
                black_box(visited).unwrap();
            }
        }
    });
    assert!(found > 0);
    assert_eq!(count, 0);
}

//! Header fields of HTTP: the limits that a server states, and the client that proxies name.

use core::net::IpAddr;
use core::time::Duration;
use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue};
use portcullis_tower::ForwardedFor;
use portcullis_tower::fields::{Generation, ReadOptions, ResetForm, Stated};

/// Returns the fields in lines `name: value`.
pub(super) fn fields(data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(64) {
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.trim_ascii()),
            HeaderValue::from_bytes(value),
        ) {
            headers.append(name, value);
        }
    }
    headers
}

/// `RateLimit` in all generations, and `Retry-After`. What is written of the limits that were read
/// can be read again.
pub fn limit_fields(data: &[u8]) {
    let headers = fields(data);
    let longest = Duration::from_hours(1);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let options = ReadOptions::new().now(now).longest(longest);
    for options in [
        options.clone(),
        options.clone().reset_form(ResetForm::Seconds),
        options.clone().now(SystemTime::UNIX_EPOCH),
    ] {
        let stated = Stated::read(&headers, &options);
        assert!(stated.retry_after.is_none_or(|wait| wait <= longest));
        let resets = stated.quotas.iter().filter_map(|quota| quota.reset);
        assert!(resets.max().is_none_or(|reset| reset <= longest));
        assert_eq!(stated.tightest().is_some(), !stated.quotas.is_empty());
        for generation in GENERATIONS {
            let mut written = HeaderMap::new();
            generation.write(&stated.quotas, now, &mut written);
            let _ = Stated::read(&written, &options);
        }
    }
}

const GENERATIONS: [Generation; 5] = [
    Generation::X(ResetForm::Seconds),
    Generation::Draft6,
    Generation::Draft7,
    Generation::Draft11,
    Generation::Next,
];

/// `X-Forwarded-For` and `Forwarded`. A peer that is no trusted proxy is the client, whatever the
/// fields say.
pub fn forwarded(data: &[u8]) {
    let headers = fields(data);
    let proxy = IpAddr::from([10, 0, 0, 1]);
    let stranger = IpAddr::from([198, 51, 100, 4]);
    for kind in [ForwardedFor::x_forwarded_for(), ForwardedFor::forwarded()] {
        let _ = kind.clone().hops(3).client(proxy, &headers);
        let Ok(network) = "10.0.0.0/8".parse() else {
            unreachable!("a network");
        };
        let trusting = kind.trust(network);
        let _ = trusting.client(proxy, &headers);
        assert_eq!(trusting.client(stranger, &headers), stranger);
    }
}

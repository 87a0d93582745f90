//! The address of the client behind proxies.
//!
//! Each proxy appends the address that it received the request from to a field. So the entries from
//! the right are those of the nearest proxies, and anything further left can be an invention of the
//! client. The field is read from the right, and only as far as the configuration trusts it:
//!
//! 1. The first address is the peer of the connection.
//! 2. As long as the address is that of a trusted proxy, the next entry from the right takes its
//!    place. Without a list of proxies, the configured number of entries is read instead.
//! 3. An entry that is not an address ends the search, and so does the end of the field. The last
//!    address that was read is the client.
//!
//! The field is split at commas from the right, without regard to quotes. A client that sends an
//! open quote can so not hide the entry that the nearest proxy appends. What a comma in quotes
//! leaves has an open quote, so it is not an address. This matters where a proxy repeats what the
//! client chose, such as `host="a,for=192.0.2.1;b"`: a name of a host may contain such characters.

use core::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::head::RequestHead;

/// Which field names the client, and which proxies to believe.
///
/// Any client can send the field. With [`trust`](Self::trust), it is read only if the peer is a
/// trusted proxy, so clients that reach the server directly gain nothing by it. With
/// [`hops`](Self::hops), it is always read, so no client may reach the server directly.
///
/// ```
/// use http::HeaderMap;
/// use portcullis_tower::ForwardedFor;
///
/// let proxies = ForwardedFor::x_forwarded_for().trust("10.0.0.0/8".parse()?);
///
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "1.1.1.1, 203.0.113.9, 10.0.0.7".parse()?);
/// let client = proxies.client("10.0.0.1".parse()?, &headers);
/// assert_eq!(client, "203.0.113.9".parse::<std::net::IpAddr>()?);
///
/// // The peer is not a trusted proxy: the field is its invention.
/// let client = proxies.client("198.51.100.4".parse()?, &headers);
/// assert_eq!(client, "198.51.100.4".parse::<std::net::IpAddr>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ForwardedFor {
    field: HeaderName,
    trusted: Vec<IpNet>,
    hops: usize,
}

/// How the address of the client is found, besides what the request knows of its connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    pub(crate) forwarded: Option<ForwardedFor>,
    /// The address of peers that have none.
    pub(crate) without_address: Option<IpAddr>,
}

impl Clients {
    /// The head of a request, with the address of the client.
    #[inline]
    pub(crate) fn head<'r, B>(&self, request: &'r http::Request<B>) -> RequestHead<'r> {
        let mut head = RequestHead::new(request);
        head.address = head.address.or(self.without_address);
        if let (Some(forwarded), Some(peer)) = (&self.forwarded, head.address) {
            head.address = Some(forwarded.client(peer, head.headers));
        }
        head
    }
}

/// The most entries that are read, however many are trusted.
const MOST_HOPS: usize = 32;

impl ForwardedFor {
    /// Reads `Forwarded` (RFC 7239).
    #[must_use]
    pub const fn forwarded() -> Self {
        Self::of(FORWARDED)
    }

    /// Reads `X-Forwarded-For`.
    #[must_use]
    pub const fn x_forwarded_for() -> Self {
        Self::of(HeaderName::from_static("x-forwarded-for"))
    }

    /// Reads another field of the form of `X-Forwarded-For`, such as `CF-Connecting-IP`.
    #[must_use]
    pub const fn field(field: HeaderName) -> Self {
        Self::of(field)
    }

    const fn of(field: HeaderName) -> Self {
        Self {
            field,
            trusted: Vec::new(),
            hops: 0,
        }
    }

    /// Trusts the proxies of a network. Without any, the field is trusted as far as [`hops`] says.
    /// A network of IPv4 addresses in the form of IPv6 (`::ffff:10.0.0.0/104`) is one of IPv4.
    ///
    /// [`hops`]: Self::hops
    #[must_use]
    pub fn trust(mut self, network: IpNet) -> Self {
        let mapped = match network {
            IpNet::V6(network) => mapped(network),
            IpNet::V4(_) => None,
        };
        self.trusted.push(mapped.unwrap_or(network));
        self
    }

    /// Sets the number of proxies in front of the server, at most 32: how many entries from the
    /// right are read. With trusted networks too, it is the most that are read.
    ///
    /// By default it is 0, or 32 with trusted networks.
    #[must_use]
    pub const fn hops(mut self, hops: usize) -> Self {
        self.hops = hops;
        self
    }

    /// Returns the address of the client, by the address of the peer and the fields of its request.
    ///
    /// An IPv4 address in the form of an IPv6 address (`::ffff:192.0.2.1`) is returned as IPv4. It
    /// allocates nothing and takes time in proportion to the entries that it reads.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let hops = match (self.hops, self.trusted.is_empty()) {
            (0, false) => MOST_HOPS,
            (hops, _) => hops.min(MOST_HOPS),
        };
        let lines = headers.get_all(&self.field).iter().rev();
        let entries = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
        let mut client = peer.to_canonical();
        for entry in entries.take(hops) {
            if !self.is_trusted(client) {
                break;
            }
            let Some(address) = core::str::from_utf8(entry)
                .ok()
                .and_then(|e| self.address(e))
            else {
                break;
            };
            client = address.to_canonical();
        }
        client
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.trusted.is_empty()
            || self
                .trusted
                .iter()
                .any(|network| network.contains(&address))
    }

    fn address(&self, entry: &str) -> Option<IpAddr> {
        if self.field != FORWARDED {
            return address(entry.trim());
        }
        let mut found = None;
        let mut rest = entry;
        loop {
            // A parameter may be empty.
            rest = rest.trim_matches([';', ' ', '\t']);
            if rest.is_empty() {
                break;
            }
            let (name, value);
            (name, value, rest) = parameter(rest)?;
            let is_for = name.eq_ignore_ascii_case("for");
            if is_for && found.replace(value).is_some() {
                return None;
            }
        }
        address(found?)
    }
}

/// Splits an element of `Forwarded` into the name and the value of its first parameter, and the
/// parameters after it. `None` if it is malformed, or if a quoted value has an escaped character:
/// no address needs one.
fn parameter(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.split_once('=')?;
    let rest = rest.trim_start();
    let (value, rest) = match rest.strip_prefix('"') {
        Some(quoted) => quoted
            .split_once('"')
            .filter(|(value, _)| !value.contains('\\'))?,
        None => rest.split_at(rest.find(';').unwrap_or(rest.len())),
    };
    let rest = rest.trim_start();
    if !rest.is_empty() && !rest.starts_with(';') {
        return None;
    }
    let name = name.trim();
    let is_open = name.contains(['"', ';']) || value.contains('"');
    (!is_open).then_some((name, value.trim_end(), rest))
}

/// Returns the IPv4 network in the form of an IPv6 network, if all its addresses have that form.
fn mapped(network: Ipv6Net) -> Option<IpNet> {
    let length = network.prefix_len().checked_sub(96)?;
    let address = network.addr().to_ipv4_mapped()?;
    Some(Ipv4Net::new(address, length).ok()?.into())
}

/// Reads an address, with or without a port, which may be obfuscated (RFC 7239, section 6.3).
fn address(text: &str) -> Option<IpAddr> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let text = match text.rsplit_once(":_") {
        Some((node, port)) if !port.is_empty() && port.chars().all(is_name) => node,
        _ => text,
    };
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address = bracketed.unwrap_or(text).parse().ok();
    address.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(proxies: &ForwardedFor, peer: &str, lines: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&proxies.field, line.parse().expect("a value of a field"));
        }
        let peer = peer.parse().expect("an address");
        proxies.client(peer, &headers).to_string()
    }

    fn trusting(proxies: ForwardedFor) -> ForwardedFor {
        let networks = ["10.0.0.0/8", "fd00::/8"];
        networks.iter().fold(proxies, |proxies, network| {
            proxies.trust(network.parse().expect("a network"))
        })
    }

    #[test]
    fn nothing_is_trusted_by_default() {
        let proxies = ForwardedFor::x_forwarded_for();
        assert_eq!(client(&proxies, "10.0.0.1", &["1.1.1.1"]), "10.0.0.1");
    }

    #[test]
    fn the_first_address_from_the_right_that_is_no_trusted_proxy_is_the_client() {
        let proxies = trusting(ForwardedFor::x_forwarded_for());
        for (peer, lines, expected) in [
            ("10.0.0.1", &["9.9.9.9"][..], "9.9.9.9"),
            ("10.0.0.1", &["1.1.1.1, 9.9.9.9"], "9.9.9.9"),
            ("10.0.0.1", &["1.1.1.1, 9.9.9.9, 10.2.3.4"], "9.9.9.9"),
            (
                "10.0.0.1",
                &["1.1.1.1", "9.9.9.9", "10.2.3.4,10.0.0.9"],
                "9.9.9.9",
            ),
            ("10.0.0.1", &["10.0.0.3"], "10.0.0.3"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("8.8.8.8", &["9.9.9.9"], "8.8.8.8"),
            ("::ffff:10.0.0.1", &["::ffff:9.9.9.9"], "9.9.9.9"),
            ("fd00::1", &["[2001:db8::9]:4711"], "2001:db8::9"),
            ("fd00::1", &["2001:db8::9"], "2001:db8::9"),
            ("fd00::1", &["[2001:db8::9]"], "2001:db8::9"),
            ("10.0.0.1", &["9.9.9.9:4711"], "9.9.9.9"),
        ] {
            assert_eq!(client(&proxies, peer, lines), expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn a_network_of_ipv4_may_have_the_form_of_ipv6() {
        let network = "::ffff:10.0.0.0/104".parse().expect("a network");
        let proxies = ForwardedFor::x_forwarded_for().trust(network);
        for peer in ["10.1.2.3", "::ffff:10.1.2.3"] {
            assert_eq!(client(&proxies, peer, &["9.9.9.9"]), "9.9.9.9");
        }
        assert_eq!(client(&proxies, "11.1.2.3", &["9.9.9.9"]), "11.1.2.3");
        // Not all addresses of this network have that form.
        let network = "::fffe:0:0/95".parse().expect("a network");
        let proxies = ForwardedFor::x_forwarded_for().trust(network);
        assert_eq!(client(&proxies, "10.1.2.3", &["9.9.9.9"]), "10.1.2.3");
    }

    #[test]
    fn an_entry_that_is_no_address_ends_the_search() {
        let proxies = trusting(ForwardedFor::x_forwarded_for());
        for lines in [
            &["9.9.9.9, unknown"][..],
            &["9.9.9.9, "],
            &["9.9.9.9, 1.2.3"],
            &["9.9.9.9, \"10.0.0.1"],
            &["9.9.9.9, \u{fc}"],
        ] {
            assert_eq!(client(&proxies, "10.0.0.1", lines), "10.0.0.1", "{lines:?}");
        }
        assert_eq!(
            client(&proxies, "10.0.0.1", &["9.9.9.9, x, 10.0.0.5"]),
            "10.0.0.5"
        );
    }

    #[test]
    fn a_number_of_hops_reads_as_many_entries() {
        let lines = &["1.1.1.1, 2.2.2.2", "3.3.3.3"];
        let expected = ["8.8.8.8", "3.3.3.3", "2.2.2.2", "1.1.1.1", "1.1.1.1"];
        for (hops, expected) in expected.into_iter().enumerate() {
            let proxies = ForwardedFor::x_forwarded_for().hops(hops);
            assert_eq!(client(&proxies, "8.8.8.8", lines), expected, "{hops}");
        }
        // With trusted networks, both must allow an entry.
        let proxies = trusting(ForwardedFor::x_forwarded_for()).hops(1);
        let lines = &["1.1.1.1, 10.0.0.5"];
        assert_eq!(client(&proxies, "10.0.0.1", lines), "10.0.0.5");
    }

    #[test]
    fn the_number_of_entries_that_are_read_is_bounded() {
        let entries: Vec<String> = (0..100).rev().map(|n| format!("10.0.1.{n}")).collect();
        let lines = &[&*entries.join(", ")];
        let expected = format!("10.0.1.{}", MOST_HOPS - 1);
        let any = ForwardedFor::x_forwarded_for().hops(1_000);
        assert_eq!(client(&any, "10.0.0.1", lines), expected);
        let trusted = trusting(ForwardedFor::x_forwarded_for());
        assert_eq!(client(&trusted, "10.0.0.1", lines), expected);
    }

    #[test]
    fn forwarded_is_read_as_rfc_7239_says() {
        let proxies = trusting(ForwardedFor::forwarded());
        for (line, expected) in [
            ("for=192.0.2.43", "192.0.2.43"),
            ("For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
            ("by=203.0.113.43; for=192.0.2.60", "192.0.2.60"),
            ("for=192.0.2.43, for=198.51.100.17", "198.51.100.17"),
            ("for=192.0.2.43, for=\"10.0.0.4:80\"", "192.0.2.43"),
            ("for=_hidden", "10.0.0.1"),
            ("for=unknown", "10.0.0.1"),
            ("proto=http", "10.0.0.1"),
            ("192.0.2.43", "10.0.0.1"),
            ("for=\"192.0.2.43:_http\"", "192.0.2.43"),
            ("for=\"[2001:db8::17]:_a.b-c\"", "2001:db8::17"),
            ("for=\"192.0.2.43:_\"", "10.0.0.1"),
            ("for=\"192.0.2.43:_a b\"", "10.0.0.1"),
            ("for = 192.0.2.43 ; proto = http", "192.0.2.43"),
            ("for=\"[2001:db8::17%1]\"", "10.0.0.1"),
            ("for=\"192.0.2.43\"x", "10.0.0.1"),
            ("for=192.0.2.43;for=192.0.2.44", "10.0.0.1"),
            (";;for=192.0.2.43; ;proto=http;", "192.0.2.43"),
        ] {
            assert_eq!(client(&proxies, "10.0.0.1", &[line]), expected, "{line}");
        }
    }

    #[test]
    fn what_a_proxy_repeats_of_the_request_names_no_client() {
        let proxies = trusting(ForwardedFor::forwarded());
        for (line, expected) in [
            ("host=\"a;for=1.1.1.1;b\";for=9.9.9.9", "9.9.9.9"),
            ("for=9.9.9.9;host=\"a;for=1.1.1.1;b\"", "9.9.9.9"),
            ("for=9.9.9.9;host=\"a,for=1.1.1.1;b\"", "10.0.0.1"),
            ("for=9.9.9.9;host=\"a,for=1.1.1.1\"", "10.0.0.1"),
            ("for=9.9.9.9;host=\"a,for=1.1.1.1;b=\\\"\"", "10.0.0.1"),
            ("for=9.9.9.9;host=\"a,\\\";for=1.1.1.1;b\"", "10.0.0.1"),
        ] {
            assert_eq!(client(&proxies, "10.0.0.1", &[line]), expected, "{line}");
        }
    }

    #[test]
    fn an_open_quote_of_the_client_hides_nothing() {
        let proxies = trusting(ForwardedFor::forwarded());
        let lines = &["for=1.1.1.1;host=\"", "for=9.9.9.9"];
        assert_eq!(client(&proxies, "10.0.0.1", lines), "9.9.9.9");
        assert_eq!(
            client(&proxies, "10.0.0.1", &["for=\"1.1.1.1, for=9.9.9.9"]),
            "9.9.9.9"
        );
    }
}

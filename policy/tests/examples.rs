//! The files in `examples/`: they are valid, and their rules are for the requests that they name.

use portcullis_core::Timestamp;
use portcullis_policy::{Imported, Limit, Outcome, Policy, Request, Rule};

/// The rule that decides a request from an address.
fn rule_for<'p>(policy: &'p Policy, request: &Request<'_>) -> Option<&'p str> {
    let request = request.address("192.0.2.7".parse().unwrap());
    policy
        .decide_at(Timestamp::ZERO, &request)
        .rule()
        .map(Rule::name)
}

#[test]
fn the_website_limits_pages_and_downloads_but_not_its_assets() {
    let policy = Policy::from_toml(include_str!("../examples/website.toml")).unwrap();
    for (path, expected) in [
        ("/", "pages"),
        ("/images/web/2009/banner.png", "assets"),
        ("/style2.css", "assets"),
        ("/blog/tags/puppet?flav=rss20", "pages"),
        ("/files/logstash/logstash-1.3.2-monolithic.jar", "downloads"),
        ("/wp-admin/", "probes"),
    ] {
        assert_eq!(
            rule_for(&policy, &Request::new("GET", path)),
            Some(expected),
            "{path}"
        );
    }
    let post = Request::new("POST", "/images/a.png");
    assert_eq!(rule_for(&policy, &post), Some("pages"));
}

#[test]
fn the_feeds_have_a_limit_of_their_own_and_a_stricter_one_on_trial() {
    let policy = Policy::from_toml(include_str!("../examples/feeds.toml")).unwrap();
    for (method, path, expected) in [
        ("GET", "/?flav=rss20", "feeds"),
        ("GET", "/blog/tags/puppet?flav=rss20", "feeds"),
        ("HEAD", "/blog/geekery/ssl-latency.html", "pages"),
        ("OPTIONS", "/", "other methods"),
    ] {
        assert_eq!(
            rule_for(&policy, &Request::new(method, path)),
            Some(expected),
            "{path}"
        );
    }
    let page = Request::new("GET", "/about").address("198.51.100.1".parse().unwrap());
    let shadow_denied = |second| {
        let decision = policy.decide_at(Timestamp::from_secs(second), &page);
        assert!(decision.is_allowed());
        decision.shadow_denied().map(Rule::name)
    };
    // Spread over an hour, so that the limit in force allows them all.
    assert!((0..60).all(|visit| shadow_denied(20 * visit).is_none()));
    assert_eq!(shadow_denied(1_200), Some("pages, stricter"));
}

#[test]
fn the_routes_of_ocelot_keep_their_order_and_their_limits() {
    let imported = Imported::from_ocelot(include_str!("../examples/ocelot.json")).unwrap();
    assert_eq!(imported.warnings, []);
    let policy = imported.into_policy().unwrap();
    let client = [("X-Real-IP", "192.0.2.7")];
    for (path, expected, limit) in [
        ("/images/web/2009/banner.png", "images", None),
        (
            "/files/logstash/logstash-1.3.2-monolithic.jar",
            "website:files",
            Some(3),
        ),
        (
            "/presentations/logstash-1/images/a.png",
            "website:talks",
            Some(30),
        ),
        ("/articles/ssh-security/", "website:articles", Some(2)),
        ("/articles/", "website:everything", Some(20)),
        ("/", "website:everything", Some(20)),
    ] {
        let request = Request::new("GET", path).headers(&client);
        let rule = policy.decide_at(Timestamp::ZERO, &request).rule().unwrap();
        let count = rule.limits().first().map(Limit::count);
        assert_eq!((rule.name(), count), (expected, limit), "{path}");
    }
    let files = policy.rule("website:files").unwrap();
    assert_eq!(
        files.message(),
        Some("Only 3 downloads per 1h. Use a mirror.")
    );
    let outcome = |client| {
        let headers = [("X-Real-IP", client)];
        let request = Request::new("GET", "/articles/a").headers(&headers);
        policy.decide_at(Timestamp::ZERO, &request).outcome()
    };
    assert_eq!(outcome("198.46.149.143"), Outcome::Exempt);
    assert_eq!(outcome(""), Outcome::Unidentified);
}

#[test]
fn the_rules_in_the_guide_for_azure_are_valid() {
    let guide = include_str!("../../docs/coming-from/azure.md");
    let examples = guide.split("```toml\n").skip(1);
    let texts: Vec<&str> = examples
        .map(|text| text.split("```").next().unwrap())
        .collect();
    assert_eq!(texts.len(), 3);
    let policy = Policy::from_toml(&texts.concat()).unwrap();
    let manifests = Request::new("GET", "/v1/team/app/_manifests")
        .host("myregistry.example.com")
        .tier("basic");
    assert_eq!(rule_for(&policy, &manifests), Some("manifests"));
    let properties = [
        ("action", "send"),
        ("service", "mail"),
        ("tenant", "a"),
        ("user", "b"),
    ];
    let mail = Request::new("", "").properties(&properties);
    assert_eq!(rule_for(&policy, &mail), Some("send mail"));
    let few = [properties[0], properties[1]];
    let nobody = Request::new("", "").properties(&few);
    assert_eq!(rule_for(&policy, &nobody), None);
    let ats = policy
        .rule("contoso.getstatus.peruserperthreadpersec")
        .unwrap();
    assert_eq!(ats.thresholds()[0].hold().as_secs(), 5);
}

/// The policy in a section of the guide for gateways.
fn of_gateway(name: &str) -> Policy {
    let guide = include_str!("../../docs/coming-from/gateways.md");
    let section = guide
        .split("\n## ")
        .find(|section| section.starts_with(name));
    let texts = section.unwrap().split("```toml\n").skip(1);
    let texts: Vec<&str> = texts
        .map(|text| text.split("```").next().unwrap())
        .collect();
    assert!(!texts.is_empty(), "{name}");
    // A file names its stores before its rules.
    let (with, without): (Vec<&str>, _) = texts.iter().partition(|text| text.starts_with("stores"));
    Policy::from_toml(&[with, without].concat().concat()).unwrap()
}

#[test]
fn the_rules_in_the_guide_for_gateways_decide_as_it_says() {
    let address = "2001:db8::1".parse().unwrap();
    let granted = |policy: &Policy, of: &[(Request<'_>, u64)]| -> Vec<bool> {
        let at = |millis: u64| Timestamp::from_millis(1_000_000 + millis);
        let decide = |(request, millis): &(Request<'_>, u64)| {
            policy.decide_at(at(*millis), request).is_allowed()
        };
        of.iter().map(decide).collect()
    };
    let count = |granted: &[bool]| granted.iter().filter(|granted| **granted).count();

    let nginx = of_gateway("nginx");
    let login = Request::new("POST", "/login").address(address);
    assert_eq!(count(&granted(&nginx, &[(login, 0); 10])), 5);
    assert_eq!(
        granted(&nginx, &[(login, 5_900), (login, 6_000), (login, 6_000)]),
        [false, true, false]
    );
    let download = Request::new("GET", "/files/a").address(address);
    let held = [0; 5].map(|_| nginx.decide_at(Timestamp::ZERO, &download));
    assert_eq!(
        held.iter().filter(|decision| decision.is_allowed()).count(),
        3
    );

    let haproxy = of_gateway("HAProxy");
    let page = Request::new("GET", "/").address(address);
    assert_eq!(count(&granted(&haproxy, &[(page, 0); 30])), 20);
    assert_eq!(
        granted(&haproxy, &[(page, 9_900), (page, 10_000)]),
        [false, true]
    );

    let envoy = of_gateway("Envoy");
    assert_eq!(envoy.rule("local").unwrap().limits()[0].count(), 50);
    let internal = [("plan", "internal")];
    let internal = Request::new("", "").properties(&internal);
    let free = [("plan", "free"), ("client", "a")];
    let free = Request::new("", "").properties(&free);
    assert_eq!(
        (rule_for(&envoy, &internal), rule_for(&envoy, &free)),
        (Some("internal"), Some("free"))
    );

    let key = [("X-Api-Key", "alice")];
    let client = Request::new("GET", "/").headers(&key);
    let traefik = of_gateway("Traefik");
    assert_eq!(count(&granted(&traefik, &[(client, 0); 12])), 10);
    assert_eq!(
        granted(&traefik, &[(client, 9_900), (client, 10_000)]),
        [false, true]
    );
    let kong = of_gateway("Kong");
    assert_eq!(kong.rule("clients").unwrap().limits().len(), 2);
    assert!(!kong.rule("clients").unwrap().has_headers());

    let dotnet = of_gateway("AspNetCoreRateLimit");
    let api = Request::new("GET", "/API/a/b").address(address);
    assert_eq!(count(&granted(&dotnet, &[(api, 0); 120])), 100);
    assert_eq!(
        granted(&dotnet, &[(api, 899_000), (api, 900_000)]),
        [false, true]
    );
    let license = Request::new("GET", "/api/license").address(address);
    assert_eq!(count(&granted(&dotnet, &[(license, 0); 120])), 120);
    let dev = [("X-ClientId", "dev-client-1")];
    assert_eq!(
        dotnet
            .decide_at(Timestamp::ZERO, &api.headers(&dev))
            .outcome(),
        Outcome::Exempt
    );

    let express = of_gateway("express-rate-limit");
    let neighbour = page.address("2001:db8:0:ff::1".parse().unwrap());
    assert_eq!(count(&granted(&express, &[(page, 0); 60])), 60);
    assert_eq!(
        count(&granted(&express, &[(neighbour, 1_000); 60])),
        40,
        "one network of 56 bits"
    );
}

const GUIDE: &str = include_str!("../../docs/policies.md");

/// The rules that add up, in the order in which the guide says how to limit clients without a key.
#[test]
fn clients_without_a_key_are_limited_by_their_addresses_and_others_are_not() {
    let file = include_str!("../examples/together.toml");
    let rules: Vec<_> = file.split("\n[[rules]]\n").skip(1).collect();
    let [each_key, logins, service] = rules[..] else {
        panic!("{rules:?}")
    };
    let continues = "continue = true\n";
    let service = format!("{service}{continues}");
    let each_key = each_key.replace(continues, "");
    let by_address = "name = \"without a key\"\nkey = [\"address\"]\nlimits = [\"5/s\"]\n";
    let rules = [logins, &service, &each_key, by_address];
    let file: String = rules.map(|rule| format!("[[rules]]\n{rule}\n")).concat();
    let policy = Policy::from_toml(&file).unwrap();
    assert!(policy.warnings().is_empty(), "{:?}", policy.warnings());
    let granted = |key: Option<&str>| {
        let headers = key.map(|key| [("X-Api-Key", key)]);
        let mut request = Request::new("GET", "/");
        if let Some(headers) = &headers {
            request = request.headers(headers);
        }
        let request = request.address("192.0.2.7".parse().unwrap());
        let decides = |_: &i32| policy.decide_at(Timestamp::ZERO, &request).is_allowed();
        (0..50).filter(decides).count()
    };
    assert_eq!(granted(Some("a")), 10);
    assert_eq!(granted(None), 5);
    assert_eq!(granted(Some("b")), 10);
}

/// Adds the names of the settings in a part of the schema, which are those of the reader.
fn add_settings(schema: &serde_json::Value, names: &mut Vec<String>) {
    match schema {
        serde_json::Value::Object(keywords) => {
            for (keyword, value) in keywords {
                // A setting may have the name of a keyword: a rule has `properties`.
                let parts = value.as_object().filter(|_| keyword == "properties");
                let Some(settings) = parts else {
                    add_settings(value, names);
                    continue;
                };
                names.extend(settings.keys().cloned());
                for setting in settings.values() {
                    add_settings(setting, names);
                }
            }
        }
        serde_json::Value::Array(parts) => {
            for part in parts {
                add_settings(part, names);
            }
        }
        _ => {}
    }
}

/// Each table of the guide begins a row with the name of a setting.
#[test]
fn the_guide_describes_each_setting() {
    let schema = include_str!("../schema/portcullis-policy.schema.json");
    let mut settings = Vec::new();
    add_settings(&serde_json::from_str(schema).unwrap(), &mut settings);
    assert!(settings.len() > 30, "{settings:?}");
    for setting in settings {
        let row = format!("\n| `{setting}` | ");
        assert!(GUIDE.contains(&row), "docs/policies.md lacks {setting}");
    }
}

#[test]
fn the_guide_names_each_public_item() {
    let library = include_str!("../src/lib.rs");
    let mut count = 0;
    for list in library.split("pub use ").skip(1) {
        let list = list.split(';').next().unwrap();
        let names = list.rsplit("::").next().unwrap();
        for name in names.split(|c: char| !c.is_alphanumeric() && c != '_') {
            if name.is_empty() {
                continue;
            }
            count += 1;
            let quoted = format!("`{name}`");
            assert!(GUIDE.contains(&quoted), "docs/policies.md lacks {name}");
        }
    }
    assert!(count > 60, "{count}");
}

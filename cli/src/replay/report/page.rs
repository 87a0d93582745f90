//! `--html`: the result as one page that needs nothing else.
//!
//! The page has no address. What comes from a log or a file is written by [`text`], which escapes
//! it, and only as the text of an element. The script has no data but the numbers of a slider.
//! Without the script, all is there but the slider.

use core::fmt::Write;
use std::collections::HashSet;

use super::super::needs::{Client, PERCENTAGES, Sign, apart, percentile, total};
use super::super::timeline::Timeline;
use crate::text::{counted, grouped, length, moment, percent, visible};

/// The page around the result.
const FRAME: &str = include_str!("page.html");

/// The number of keys in a heat map.
const BUSIEST: usize = 20;

/// A result to show.
pub(crate) struct Page<'a> {
    pub(crate) title: String,
    /// What is shown first: names and values.
    pub(crate) facts: Vec<(&'static str, String)>,
    pub(crate) sections: Vec<Section<'a>>,
}

/// The result of one rule or of one limit.
pub(crate) struct Section<'a> {
    pub(crate) name: String,
    pub(crate) limits: String,
    pub(crate) timeline: Option<&'a Timeline>,
    /// The keys with their names.
    pub(crate) clients: Vec<(String, &'a Client)>,
    /// Lines about recommended limits.
    pub(crate) recommended: Vec<String>,
}

impl Page<'_> {
    /// Returns the page. `all_keys` counts also the keys that look like abuse.
    pub(crate) fn html(&self, all_keys: bool) -> String {
        let mut body = String::new();
        let title = text(&self.title);
        let _ = writeln!(body, "<h1>{title}</h1>\n<dl>");
        for (name, value) in &self.facts {
            let _ = writeln!(body, "<dt>{}</dt><dd>{}</dd>", text(name), text(value));
        }
        body.push_str("</dl>\n");
        for (number, section) in self.sections.iter().enumerate() {
            section.write(&mut body, number, all_keys);
        }
        // The title and the body have no braces of the frame: they are put in from the end.
        let (head, rest) = FRAME.split_once("{title}").unwrap_or_default();
        let (middle, tail) = rest.split_once("{body}").unwrap_or_default();
        [head, &title, middle, &body, tail].concat()
    }
}

impl Section<'_> {
    fn write(&self, out: &mut String, number: usize, all_keys: bool) {
        let (name, limits) = (text(&self.name), text(&self.limits));
        let _ = writeln!(
            out,
            "<section aria-labelledby=\"h{number}\">\n<h2 id=\"h{number}\">{name}</h2>"
        );
        let _ = writeln!(out, "<p>{limits}</p>");
        if let Some(timeline) = self.timeline {
            over_time(out, timeline);
            self.heat(out, timeline);
        }
        self.what_if(out, number, all_keys);
        if !self.recommended.is_empty() {
            out.push_str("<h3>Recommended limits</h3>\n<ul>\n");
            for line in &self.recommended {
                let _ = writeln!(out, "<li>{}</li>", text(line));
            }
            out.push_str("</ul>\n");
        }
        out.push_str("</section>\n");
    }

    /// Writes the requests of the busiest keys over time.
    fn heat(&self, out: &mut String, timeline: &Timeline) {
        let mut busiest: Vec<_> = self.clients.iter().collect();
        busiest.sort_unstable_by(|(a, x), (b, y)| {
            (y.tally.sum(), y.tally.denied, a).cmp(&(x.tally.sum(), x.tally.denied, b))
        });
        busiest.truncate(BUSIEST);
        let rows: Vec<_> = busiest
            .iter()
            .map(|(_, client)| client.timeline.sums_on(timeline))
            .collect();
        let most = rows.iter().flatten().copied().max().unwrap_or(0);
        if most == 0 {
            return;
        }
        let spans = timeline.rows().map(|(start, _)| moment(start));
        let spans: Vec<_> = spans.collect();
        out.push_str(
            "<h3>Busiest keys</h3>\n<div class=\"wide\" role=\"region\" tabindex=\"0\" \
             aria-label=\"Busiest keys over time\">\n<table class=\"heat\">\n",
        );
        let _ = writeln!(
            out,
            "<caption>Requests in each {}; the stronger the colour, the more, up to {}</caption>",
            length(timeline.width()),
            grouped(most)
        );
        out.push_str("<tr><th scope=\"col\">key</th>");
        for span in &spans {
            let _ = write!(
                out,
                "<th scope=\"col\"><span class=\"hidden\">{}</span></th>",
                text(span)
            );
        }
        out.push_str("<th scope=\"col\">requests</th><th scope=\"col\">denied</th></tr>\n");
        for ((key, client), sums) in busiest.iter().zip(&rows) {
            let _ = write!(
                out,
                "<tr><th scope=\"row\"><bdi>{}</bdi></th>",
                key_text(key)
            );
            for (sum, span) in sums.iter().zip(&spans) {
                let shade = percent(*sum, most).ceil();
                let _ = write!(
                    out,
                    "<td title=\"{}: {}\" style=\"background:rgb(var(--heat) / {shade:.0}%)\">\
                     <span class=\"hidden\">{}</span></td>",
                    text(span),
                    grouped(*sum),
                    grouped(*sum)
                );
            }
            let (sum, denied) = (grouped(client.tally.sum()), grouped(client.tally.denied));
            let _ = writeln!(out, "<td>{sum}</td><td>{denied}</td></tr>");
        }
        out.push_str("</table>\n</div>\n");
    }

    /// Writes how many keys would be denied by several limits, and a slider for others.
    fn what_if(&self, out: &mut String, number: usize, all_keys: bool) {
        let clients = self.clients.iter().map(|(key, of)| (&**key, *of));
        let (own, clients): (Vec<_>, Vec<_>) = clients.partition(|(_, of)| of.own_limits.is_some());
        let greedy = if all_keys {
            Vec::new()
        } else {
            apart(&clients)
        };
        let is_greedy: HashSet<_> = greedy.iter().map(|(at, _)| *at).collect();
        let of_keys = clients.iter().enumerate();
        let of_keys = of_keys.filter(|(at, _)| !is_greedy.contains(at));
        let of_keys = of_keys.map(|(_, (_, client))| (client.need.minute, client.need.second));
        let (mut minute, mut second): (Vec<_>, Vec<_>) = of_keys.unzip();
        minute.sort_unstable();
        second.sort_unstable();
        if minute.is_empty() {
            return;
        }
        let keys = minute.len();
        let over = |limit: u64| keys - minute.partition_point(|&need| need <= limit);
        out.push_str("<h3>What if</h3>\n<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"What if\">\n<table>\n");
        let _ = writeln!(
            out,
            "<caption>Limits that serve a share of {}</caption>",
            counted(keys as u64, ("key", "keys"))
        );
        out.push_str(
            "<tr><th scope=\"col\">keys that need no more</th><th scope=\"col\">in a minute</th>\
             <th scope=\"col\">in a second</th><th scope=\"col\">keys over the minute</th></tr>\n",
        );
        for share in PERCENTAGES {
            let (minute, second) = (percentile(&minute, share), percentile(&second, share));
            let over = over(minute);
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{share} %</th><td>{}</td><td>{}</td><td>{} ({:.1} %)</td></tr>",
                grouped(minute),
                grouped(second),
                grouped(over as u64),
                percent(over as u64, keys as u64)
            );
        }
        out.push_str("</table>\n</div>\n");
        let list = |of: &dyn Fn(usize) -> String| (1..=100).map(of).collect::<Vec<_>>().join(",");
        let minutes = list(&|share| percentile(&minute, share).to_string());
        let seconds = list(&|share| percentile(&second, share).to_string());
        let overs = list(&|share| over(percentile(&minute, share)).to_string());
        let _ = writeln!(
            out,
            "<p><label for=\"s{number}\">Share of keys to serve, in percent</label>\
             <input type=\"range\" id=\"s{number}\" min=\"1\" max=\"100\" value=\"99\" \
             data-minute=\"{minutes}\" data-second=\"{seconds}\" data-over=\"{overs}\">\
             <output for=\"s{number}\"></output></p>"
        );
        with_own_limits(out, own.len());
        left_out(out, &clients, &greedy);
    }
}

/// Writes how many keys have limits of their own.
fn with_own_limits(out: &mut String, keys: usize) {
    if keys > 0 {
        let keys = counted(keys as u64, ("key", "keys"));
        let _ = writeln!(
            out,
            "<p>Left out of the table, as they have limits of their own: {keys}</p>"
        );
    }
}

/// Writes the keys that look like abuse, which are at these places of `clients`.
fn left_out(out: &mut String, clients: &[(&str, &Client)], greedy: &[(usize, Sign)]) {
    if greedy.is_empty() {
        return;
    }
    let total = total(clients);
    out.push_str("<p>Left out of the table, as they look like abuse:</p>\n<ul>\n");
    for &(at, sign) in greedy {
        let (key, client) = clients[at];
        let _ = writeln!(
            out,
            "<li><bdi>{}</bdi>: {}, {}</li>",
            key_text(key),
            counted(client.tally.sum(), ("request", "requests")),
            sign.text(client, total)
        );
    }
    out.push_str("</ul>\n");
}

/// Writes the decisions over time, as a chart and as a table.
fn over_time(out: &mut String, timeline: &Timeline) {
    let rows: Vec<_> = timeline.rows().collect();
    let most = rows.iter().map(|(_, tally)| tally.sum()).max().unwrap_or(0);
    if most == 0 {
        return;
    }
    let (allowed, denied) = rows.iter().fold((0, 0), |(allowed, denied), (_, tally)| {
        (allowed + tally.allowed, denied + tally.denied)
    });
    let _ = writeln!(
        out,
        "<h3>Over time</h3>\n<p><span class=\"key allowed\">{} allowed</span> \
         <span class=\"key denied\">{} denied ({:.1} %)</span> \
         <span class=\"quiet\">{} a bar, UTC</span></p>",
        grouped(allowed),
        grouped(denied),
        percent(denied, allowed + denied),
        length(timeline.width())
    );
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {} 100\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Allowed and denied requests over time; the table below has the numbers\">",
        rows.len() * 10
    );
    for (at, (start, tally)) in rows.iter().enumerate() {
        let (x, high) = (at * 10, percent(tally.sum(), most));
        let low = percent(tally.denied, most);
        let _ = writeln!(
            out,
            "<g><title>{}: {} allowed, {} denied</title>\
             <rect class=\"a\" x=\"{x}\" y=\"{:.2}\" width=\"9\" height=\"{:.2}\"/>\
             <rect class=\"d\" x=\"{x}\" y=\"{:.2}\" width=\"9\" height=\"{:.2}\"/></g>",
            text(&moment(*start)),
            grouped(tally.allowed),
            grouped(tally.denied),
            100.0 - high,
            high - low,
            100.0 - low,
            low
        );
    }
    out.push_str(
        "</svg>\n<details><summary>As a table</summary>\n<div class=\"wide\" role=\"region\" tabindex=\"0\" \
         aria-label=\"Decisions over time\"><table>\n<tr>\
         <th scope=\"col\">from</th><th scope=\"col\">allowed</th>\
         <th scope=\"col\">denied</th></tr>\n",
    );
    for (start, tally) in rows {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td></tr>",
            text(&moment(start)),
            grouped(tally.allowed),
            grouped(tally.denied)
        );
    }
    out.push_str("</table></div>\n</details>\n");
}

/// Escapes a key; that of all requests has no name.
fn key_text(key: &str) -> String {
    match key {
        "" => "all requests".into(),
        key => text(key),
    }
}

/// Escapes a text for an element or for an attribute in double quotes.
fn text(of: &str) -> String {
    let mut escaped = String::with_capacity(of.len());
    for c in visible(of.as_bytes()).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

//! Files of rules: their formats, and their errors as a compiler shows them.

use core::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use clap::ValueEnum;
use portcullis_policy::{FileError, Imported, Policy, RuleError};

use crate::colour;
use crate::failure::Failure;
use crate::text::counted;

/// The largest file that is read, in bytes: 16 MiB.
const MAX_BYTES: u64 = 1 << 24;

/// The longest line that is shown, in bytes. The position of an error in a longer one is shown
/// without the line.
const MAX_LINE: usize = 4_096;

/// The format of a file of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyFormat {
    /// Our own format in TOML.
    Toml,
    /// Our own format in JSON, with comments.
    Json,
    /// The configuration of the gateway Ocelot: `ocelot.json`.
    Ocelot,
    /// Policies of the Azure Throttling Solution.
    Ats,
}

impl PolicyFormat {
    /// The format by the name of a file: JSON of other systems has the word `ocelot` or `ats`, as
    /// in `ocelot.production.json`; of others, the extension counts.
    ///
    /// # Errors
    ///
    /// Returns what to do about a file whose name does not tell, or tells a format that is not
    /// read.
    fn of(path: &Path) -> Result<Self, String> {
        let text = |part: Option<&OsStr>| part.and_then(OsStr::to_str).map(str::to_ascii_lowercase);
        let extension = text(path.extension()).unwrap_or_default();
        let name = text(path.file_name()).unwrap_or_default();
        let has = |wanted: &str| name.split(['.', '-', '_']).any(|word| word == wanted);
        match &*extension {
            "toml" => Ok(Self::Toml),
            "json" | "jsonc" if has("ocelot") => Ok(Self::Ocelot),
            "json" | "jsonc" if has("ats") => Ok(Self::Ats),
            "json" | "jsonc" => Ok(Self::Json),
            "yaml" | "yml" => Err(
                "YAML is not read: convert it to JSON (for example: yq -o json FILE), or write \
                 TOML"
                    .into(),
            ),
            _ => Err(
                "name its format with --policy-format: toml, json, ocelot or ats. The extensions \
                 .toml, .json and .jsonc tell it"
                    .into(),
            ),
        }
    }
}

/// Why the rules of a file are not in force.
pub(crate) enum Refused {
    /// Errors of the file, with their places.
    InFile(Vec<FileError>),
    /// The rules of a file of another system, which are valid alone, need too much memory together.
    Together(Vec<RuleError>),
}

impl From<Vec<FileError>> for Refused {
    fn from(errors: Vec<FileError>) -> Self {
        Self::InFile(errors)
    }
}

/// The texts of a file of rules, or of several that are one configuration of Ocelot.
pub(crate) struct PolicyFile {
    name: String,
    format: PolicyFormat,
    /// The name of each file, and its text.
    texts: Vec<(String, String)>,
    has_warned: Cell<bool>,
}

/// The configuration of Ocelot in a folder: all `ocelot.*.json`, or else `ocelot.json`.
fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default().to_ascii_lowercase();
        let part = name.strip_prefix("ocelot.");
        let part = part.and_then(|part| part.strip_suffix(".json"));
        if part.is_some() && path.is_file() {
            parts.push(path);
        }
    }
    if parts.is_empty() {
        parts.push(folder.join("ocelot.json"));
    }
    parts.sort();
    Ok(parts)
}

impl PolicyFile {
    /// Reads a file, or standard input for `-`. The default format is that of the name. A folder
    /// has the files of Ocelot, which can also be named one by one.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if a file cannot be read, is not UTF-8 or is too large, if its format
    /// is not known, or if there are several files and one is not of Ocelot.
    pub(crate) fn read(paths: &[PathBuf], format: Option<PolicyFormat>) -> Result<Self, Failure> {
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() {
                let found = files_in(path).map_err(|error| refused(path, &error))?;
                files.extend(found);
            } else {
                files.push(path.clone());
            }
        }
        let names: Vec<String> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let mut this = Self {
            name: names.join(", "),
            format: format.unwrap_or(PolicyFormat::Ocelot),
            texts: Vec::new(),
            has_warned: Cell::new(false),
        };
        let is_only = files.len() == 1;
        for path in files {
            let format = match format {
                Some(format) => format,
                None => PolicyFormat::of(&path).map_err(|reason| refused(&path, &reason))?,
            };
            if !is_only && format != PolicyFormat::Ocelot {
                let reason = "only files of Ocelot can be several";
                return Err(refused(&path, &reason));
            }
            this.format = format;
            let text = read_text(&path)?;
            this.texts.push((path.display().to_string(), text));
        }
        Ok(this)
    }

    /// The name, as the user wrote it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a file in our own format seems to have settings of `portcullis-serve`, which a
    /// policy ignores.
    pub(crate) fn is_for_serve(&self) -> bool {
        let is_ours = matches!(self.format, PolicyFormat::Toml | PolicyFormat::Json);
        let mut lines = self.texts.iter().flat_map(|(_, text)| text.lines());
        is_ours
            && lines.any(|line| {
                let name = line.trim_start().trim_start_matches(['[', '{', ' ', '"']);
                let rest = name.strip_prefix("serve").unwrap_or("x");
                rest.trim_start().starts_with(['.', ']', '=', '"', ':'])
            })
    }

    /// Puts the rules in force. Prints warnings on standard error.
    ///
    /// # Errors
    ///
    /// All errors in the file.
    pub(crate) fn policy(&self) -> Result<Policy, Refused> {
        let texts = self.texts.iter();
        let texts: Vec<_> = texts.map(|(name, text)| (&**name, &**text)).collect();
        let text = texts.first().map_or("", |(_, text)| text);
        match self.format {
            PolicyFormat::Toml => Ok(self.warned(Policy::from_toml(text)?)),
            PolicyFormat::Json => Ok(self.warned(Policy::from_json(text)?)),
            PolicyFormat::Ocelot => self.imported(Imported::from_ocelot_files(&texts)?),
            PolicyFormat::Ats => self.imported(Imported::from_ats(text)?),
        }
    }

    /// Prints the warnings of a file in our own format.
    fn warned(&self, policy: Policy) -> Policy {
        self.warn(policy.warnings());
        policy
    }

    /// Prints the warnings of a file of another system, and puts its rules in force.
    fn imported(&self, imported: Imported) -> Result<Policy, Refused> {
        self.warn(&imported.warnings);
        imported.into_policy().map_err(Refused::Together)
    }

    /// Prints errors on standard error, each with its line of the file if it has one. Returns the
    /// name of the file and how many errors there are, as text.
    pub(crate) fn report(&self, refused: &Refused) -> String {
        let count = match refused {
            Refused::InFile(errors) => {
                self.print(errors, &Level::ERROR);
                errors.len()
            }
            Refused::Together(errors) => {
                for error in errors {
                    eprintln!("error: {error}");
                }
                errors.len()
            }
        };
        format!(
            "{}: {}",
            self.name,
            counted(count as u64, ("error", "errors"))
        )
    }

    /// Prints warnings on standard error, each with its line.
    pub(crate) fn warn(&self, warnings: &[FileError]) {
        let has_warned = self.has_warned.get() || !warnings.is_empty();
        self.has_warned.set(has_warned);
        self.print(warnings, &Level::WARNING);
    }

    /// Whether a warning was printed.
    pub(crate) fn has_warned(&self) -> bool {
        self.has_warned.get()
    }

    fn print(&self, messages: &[FileError], level: &Level<'_>) {
        let renderer = if colour::is_for(&io::stderr()) {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        for message in messages {
            eprintln!("{}\n", self.rendered(message, level, &renderer));
        }
    }

    fn rendered(&self, error: &FileError, level: &Level<'_>, renderer: &Renderer) -> String {
        let title = level.clone().primary_title(&error.message);
        let is_of = |(name, _): &&(String, String)| error.file.as_deref() == Some(name);
        let file = self.texts.iter().find(is_of).or(self.texts.first());
        let (name, text) = file.map_or(("", ""), |(name, text)| (name, text));
        let start = text[..error.bytes.start]
            .rfind('\n')
            .map_or(0, |newline| newline + 1);
        let rest = &text[start..];
        let line = rest.lines().next().unwrap_or_default();
        let group = if line.len() > MAX_LINE {
            title.element(
                Origin::path(name)
                    .line(error.line)
                    .char_column(error.column),
            )
        } else {
            // Of several lines, the first one is shown.
            let bytes = [error.bytes.start, error.bytes.end];
            let [from, to] = bytes.map(|byte| (byte - start).min(line.len()));
            title.element(
                Snippet::source(line)
                    .line_start(error.line)
                    .path(name)
                    .annotation(AnnotationKind::Primary.span(from..to)),
            )
        };
        renderer.render(&[group])
    }
}

fn refused(path: &Path, reason: &dyn core::fmt::Display) -> Failure {
    Failure::Refused(format!("cannot use {}: {reason}", path.display()))
}

/// Reads a file, or standard input for `-`.
fn read_text(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin()
            .lock()
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
    };
    if let Err(error) = read {
        return Err(refused(path, &error));
    }
    if bytes.len() as u64 > MAX_BYTES {
        let reason = format_args!("it is larger than {MAX_BYTES} bytes");
        return Err(refused(path, &reason));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let newlines = error.as_bytes()[..valid]
            .iter()
            .filter(|byte| **byte == b'\n');
        let line = 1 + newlines.count();
        refused(path, &format_args!("it is not UTF-8 in line {line}"))
    })
}

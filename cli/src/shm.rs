//! `portcullis shm`: the limiters in memory that processes share.

use core::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use jiff::Timestamp;
use portcullis_shm::{Description, OpenError, SharedFile};

use crate::args::{ShmArgs, ShmCommand};
use crate::failure::Failure;

/// Lists, shows or removes files.
///
/// # Errors
///
/// [`Failure::Refused`] if a file cannot be read or removed, [`Failure::Output`] if the result
/// cannot be written.
pub(crate) fn run(args: &ShmArgs) -> Result<ExitCode, Failure> {
    let text = match &args.command {
        ShmCommand::Ls => list()?,
        ShmCommand::Show { name } => show(&file(name)?)?,
        ShmCommand::Rm { names } => {
            for name in names {
                remove(&file(name)?)?;
            }
            String::new()
        }
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The file of a name, or at a path.
fn file(name: &str) -> Result<SharedFile, Failure> {
    if name.contains('/') {
        return Ok(SharedFile::at(name));
    }
    SharedFile::named(name).map_err(refused)
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn refused(error: OpenError) -> Failure {
    Failure::Refused(error.to_string())
}

/// One line for each file that has a name.
fn list() -> Result<String, Failure> {
    let all = SharedFile::all();
    let all = all.map_err(|error| Failure::Refused(format!("cannot list the files: {error}")))?;
    let mut text = String::new();
    for file in all {
        let path = file.path().display().to_string();
        let name = path
            .rsplit_once("/portcullis.")
            .map_or(&*path, |(_, name)| name);
        let _ = match file.describe() {
            Ok(about) => writeln!(
                text,
                "{name:20}  {:11}  {:>10}  {:03o}  user {:5}  {:12}  {}",
                about.kind,
                about.bytes,
                about.mode,
                about.owner,
                state(&about),
                about.settings.escape_debug()
            ),
            Err(error) => writeln!(text, "{name:20}  {error}"),
        };
    }
    Ok(text)
}

fn state(about: &Description) -> &'static str {
    match about {
        about if about.is_in_use => "in use",
        about if about.is_of_another_boot => "old",
        _ => "not in use",
    }
}

/// All that the file says about itself.
fn show(file: &SharedFile) -> Result<String, Failure> {
    let about = file.describe().map_err(refused)?;
    let created = Timestamp::try_from(about.created);
    let created = created.map_or_else(|_| "at an unknown time".to_owned(), |at| at.to_string());
    let boot = if about.is_of_another_boot {
        ", before the machine was started: the next process that opens the file replaces it"
    } else {
        ""
    };
    Ok(format!(
        "file:     {}\nkind:     {}\nsettings: {}\nsize:     {} bytes\nmode:     {:03o}, user {}\n\
         created:  {created}, by process {}{boot}\nstate:    {}\n",
        file.path().display(),
        about.kind,
        about.settings.escape_debug(),
        about.bytes,
        about.mode,
        about.owner,
        about.creator,
        state(&about)
    ))
}

/// Removes the file, and what processes left that died while they created it.
fn remove(file: &SharedFile) -> Result<(), Failure> {
    let path = file.path().display();
    let unfinished = file.remove_unfinished();
    unfinished.map_err(|error| Failure::Refused(format!("{path}: {error}")))?;
    file.remove().map_err(refused)
}

//! A package for Debian and its derivatives: deb(5).

use std::fmt::Write as _;

use anyhow::Result;

use crate::archive::Archive;
use crate::payload::{File, Payload};
use crate::{Arch, about};

/// Maintainer scripts. Installation starts nothing: there is no configuration yet.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("../scripts/postinst")),
    ("prerm", include_str!("../scripts/prerm")),
    ("postrm", include_str!("../scripts/postrm")),
];

pub fn package(arch: Arch, epoch: u32, payload: Payload) -> Result<Vec<u8>> {
    let mut control = Archive::new(epoch);
    control.file("control", 0o644, description(arch, &payload)?.as_bytes())?;
    let kept = payload.files.iter().filter(|file| file.is_configuration());
    let kept: String = kept.map(|file| format!("{}\n", file.path)).collect();
    control.file("conffiles", 0o644, kept.as_bytes())?;
    for (name, script) in SCRIPTS {
        control.file(name, 0o755, script.as_bytes())?;
    }
    let mut data = Archive::new(epoch);
    for File {
        path,
        mode,
        content,
    } in &payload.files
    {
        data.file(path, *mode, content)?;
    }
    let mut deb = b"!<arch>\n".to_vec();
    for (name, content) in [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", control.gzip()?),
        ("data.tar.gz", data.gzip()?),
    ] {
        let size = content.len();
        let header = format!(
            "{name:<16}{epoch:<12}{:<6}{:<6}{:<8}{size:<10}`\n",
            0, 0, 100_644
        );
        deb.extend(header.as_bytes());
        deb.extend(&content);
        if size % 2 == 1 {
            deb.push(b'\n');
        }
    }
    Ok(deb)
}

fn description(arch: Arch, payload: &Payload) -> Result<String> {
    let bytes: usize = payload.files.iter().map(|file| file.content.len()).sum();
    let mut text = format!(
        "Package: {}\nVersion: {}\nArchitecture: {}\nMaintainer: {}\nInstalled-Size: {}\n\
         Section: net\nPriority: optional\nDescription: {}\n",
        about::NAME,
        about::VERSION,
        arch.debian,
        about::MAINTAINER,
        bytes.div_ceil(1024),
        about::SUMMARY,
    );
    for line in about::DESCRIPTION.lines() {
        writeln!(text, " {line}")?;
    }
    Ok(text)
}

//! A package for Fedora, SUSE and their derivatives.

use anyhow::Result;
use rpm::{BuildConfig, CompressionType, FileOptions, PackageBuilder};

use crate::payload::Payload;
use crate::{Arch, about};

pub fn package(arch: Arch, epoch: u32, payload: Payload) -> Result<Vec<u8>> {
    let licence = about::LICENCE;
    let mut package = PackageBuilder::new(
        about::NAME,
        about::VERSION,
        licence,
        arch.name,
        about::SUMMARY,
    );
    let config = BuildConfig::v4()
        .compression(CompressionType::Gzip)
        .source_date(epoch);
    package
        .using_config(config)
        .description(about::DESCRIPTION)
        .packager(about::MAINTAINER)
        .build_host("localhost")
        .post_install_script(include_str!("../scripts/rpm-post"))
        .pre_uninstall_script(include_str!("../scripts/rpm-preun"))
        .post_uninstall_script(include_str!("../scripts/rpm-postun"));
    for file in payload.files {
        let options = FileOptions::new(&file.path).permissions(file.mode as u16);
        let options = if file.is_configuration() {
            options.config().noreplace()
        } else if file.path.starts_with("/usr/share/doc/")
            || file.path.starts_with("/usr/share/man/")
        {
            options.doc()
        } else {
            options
        };
        package.with_file_contents(file.content, options)?;
    }
    let mut bytes = Vec::new();
    package.build()?.write(&mut bytes)?;
    Ok(bytes)
}

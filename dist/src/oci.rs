//! An image archive: the layout of the OCI image specification in a tar file, one index for all architectures.
//!
//! `podman load`, `ctr images import` and `skopeo copy oci-archive:` accept it.

use anyhow::Result;
use serde_json::{Value, json};

use crate::archive::{Archive, gzip, sha256};
use crate::{Arch, about};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The archive, with content-addressed blobs.
struct Layout(Archive);

impl Layout {
    /// Adds a blob; returns its descriptor.
    fn blob(&mut self, kind: &str, content: &[u8]) -> Result<Value> {
        let digest = sha256(content);
        self.0
            .file(&format!("blobs/sha256/{digest}"), 0o644, content)?;
        Ok(json!({
            "mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len(),
        }))
    }

    fn document(&mut self, kind: &str, document: &Value) -> Result<Value> {
        self.blob(kind, &serde_json::to_vec(document)?)
    }

    /// Adds an image with the command only.
    fn image(&mut self, epoch: u32, arch: Arch, command: &[u8]) -> Result<Value> {
        let mut files = Archive::new(epoch);
        files.file("usr/bin/ecn", 0o755, command)?;
        let files = files.tar()?;
        let platform = json!({"architecture": arch.debian, "os": "linux"});
        let mut config = json!({
            "config": {"Entrypoint": ["/usr/bin/ecn"], "Cmd": ["run"], "Env": ["PATH=/usr/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&files))]},
        });
        config["architecture"] = platform["architecture"].clone();
        config["os"] = platform["os"].clone();
        let config = self.document(CONFIG, &config)?;
        let layer = self.blob(LAYER, &gzip(&files)?)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
            "annotations": {
                "org.opencontainers.image.title": about::NAME,
                "org.opencontainers.image.description": about::SUMMARY,
                "org.opencontainers.image.version": about::VERSION,
                "org.opencontainers.image.licenses": about::LICENCE,
            },
        });
        let mut found = self.document(MANIFEST, &manifest)?;
        found["platform"] = platform;
        Ok(found)
    }
}

pub fn archive(epoch: u32, commands: &[(Arch, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut layout = Layout(Archive::new(epoch));
    let version = json!({"imageLayoutVersion": "1.0.0"});
    layout
        .0
        .file("oci-layout", 0o644, &serde_json::to_vec(&version)?)?;
    let index = |manifests: Vec<Value>| json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    let images = commands
        .iter()
        .map(|(arch, command)| layout.image(epoch, *arch, command));
    let images = images.collect::<Result<Vec<_>>>()?;
    let mut all = layout.document(INDEX, &index(images))?;
    let name = format!("{}:{}", about::NAME, about::VERSION);
    all["annotations"] = json!({
        "org.opencontainers.image.ref.name": about::VERSION,
        "io.containerd.image.name": format!("localhost/{name}"),
    });
    let top = serde_json::to_vec(&index(vec![all]))?;
    layout.0.file("index.json", 0o644, &top)?;
    layout.0.tar()
}

//! `deploy/kubernetes/sidecar.yaml`: a native sidecar beside an agent.

use std::time::Duration;

use oncegate::config::{Callers, Config};
use serde_json::Value;

use crate::image::{holds, image};
use crate::{IMAGE, assert_store_within, at, called, config, list, string, yaml};

const FILE: &str = "deploy/kubernetes/sidecar.yaml";

struct Manifest {
    map: Value,
    set: Value,
}

fn manifest() -> Manifest {
    let [map, set] = yaml(FILE).try_into().unwrap();
    assert_eq!((at(&map, "/kind"), at(&set, "/kind")), (&Value::from("ConfigMap"), &Value::from("StatefulSet")));
    Manifest { map, set }
}

impl Manifest {
    fn pod(&self) -> &Value {
        at(&self.set, "/spec/template/spec")
    }

    fn sidecar(&self) -> &Value {
        let [sidecar] = list(self.pod(), "/initContainers") else { panic!("one init container") };
        sidecar
    }

    fn config(&self) -> Config {
        let variables = list(self.sidecar(), "/env").iter().map(|variable| string(variable, "/name").to_owned());
        config(FILE, string(&self.map, "/data/gateway.toml"), variables)
    }

    /// Name of the volume that the gateway mounts at `path`.
    fn mounted(&self, path: &str) -> &str {
        let mounts = list(self.sidecar(), "/volumeMounts").iter();
        let mut there = mounts.filter(|mount| string(mount, "/mountPath") == path);
        string(there.next().unwrap_or_else(|| panic!("nothing at {path}")), "/name")
    }
}

#[test]
fn the_gateway_is_up_before_the_agent_and_down_after_it() {
    let manifest = manifest();
    assert_eq!(at(manifest.sidecar(), "/restartPolicy"), "Always");
    assert_eq!(at(manifest.sidecar(), "/startupProbe/httpGet/path"), "/readyz");
    let grace = at(manifest.pod(), "/terminationGracePeriodSeconds").as_u64().unwrap();
    assert!(Duration::from_secs(grace) > manifest.config().server.drain);
}

#[test]
fn probes_ask_the_health_listener() {
    let manifest = manifest();
    let health = manifest.config().server.health;
    assert!(health.ip().is_unspecified(), "the kubelet comes from outside");
    let [port] = list(manifest.sidecar(), "/ports") else { panic!("one port") };
    assert_eq!(at(port, "/containerPort"), health.port());
    for (probe, path) in [("startup", "/readyz"), ("liveness", "/livez"), ("readiness", "/readyz")] {
        let asked = at(manifest.sidecar(), &format!("/{probe}Probe/httpGet"));
        assert_eq!((at(asked, "/path"), at(asked, "/port")), (&Value::from(path), at(port, "/name")), "{probe}");
    }
}

#[test]
fn only_the_agent_of_the_pod_reaches_the_gateway() {
    let manifest = manifest();
    let config = manifest.config();
    assert!(config.server.listen.ip().is_loopback() && config.server.admin.ip().is_loopback());
    assert!(matches!(config.callers, Callers::None));
    let listen = (config.server.listen.ip().to_string(), config.server.listen.port());
    let (host, port) = called(string(manifest.pod(), "/containers/0/env/0/value"), &config);
    assert_eq!((host.to_owned(), port), listen);
}

#[test]
fn the_gateway_runs_without_privileges() {
    let manifest = manifest();
    let (pod, own) = (at(manifest.pod(), "/securityContext"), at(manifest.sidecar(), "/securityContext"));
    assert_eq!(at(pod, "/runAsNonRoot"), true);
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        assert_eq!(at(pod, &format!("/{field}")), image().user, "{field}");
    }
    assert_eq!(at(own, "/allowPrivilegeEscalation"), false);
    assert_eq!(at(own, "/readOnlyRootFilesystem"), true);
    assert!(holds(list(own, "/capabilities/drop"), "ALL"));
    assert_eq!(at(manifest.sidecar(), "/image"), IMAGE);
}

#[test]
fn configuration_and_store_are_mounted_where_the_gateway_looks() {
    let manifest = manifest();
    let image = image();
    let folder = image.config.strip_suffix("/gateway.toml").unwrap();
    let [volume] = list(manifest.pod(), "/volumes") else { panic!("one volume") };
    assert_eq!(at(volume, "/name"), manifest.mounted(folder));
    assert_eq!(at(volume, "/configMap/name"), at(&manifest.map, "/metadata/name"));
    assert_store_within(&manifest.config(), &image.volume);
    assert_eq!(at(&manifest.set, "/spec/volumeClaimTemplates/0/metadata/name"), manifest.mounted(&image.volume));
}

#[test]
fn the_set_finds_its_pods() {
    let set = manifest().set;
    assert_eq!(at(&set, "/spec/selector/matchLabels"), at(&set, "/spec/template/metadata/labels"));
    assert_eq!(at(&set, "/apiVersion"), "apps/v1");
}

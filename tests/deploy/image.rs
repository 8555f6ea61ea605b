//! The container image, and what manifests may rely on.

use serde_json::Value;

use crate::text;

pub(crate) struct Image {
    pub(crate) program: String,
    /// Where the command looks for `gateway.toml`.
    pub(crate) config: String,
    pub(crate) user: u64,
    pub(crate) volume: String,
    pub(crate) ports: Vec<u16>,
}

/// The last stage of the Containerfile.
pub(crate) fn image() -> Image {
    let stage = last_stage();
    let words = |instruction: &str| -> Vec<String> { serde_json::from_str(only(&stage, instruction)).unwrap() };
    let [program] = words("ENTRYPOINT").try_into().unwrap();
    let [serve, flag, config] = words("CMD").try_into().unwrap();
    assert_eq!((serve.as_str(), flag.as_str()), ("serve", "--config"));
    let (user, group) = only(&stage, "USER").split_once(':').unwrap();
    assert_eq!(user, group);
    Image {
        program,
        config,
        user: user.parse().unwrap(),
        volume: only(&stage, "VOLUME").to_owned(),
        ports: only(&stage, "EXPOSE").split(' ').map(|port| port.parse().unwrap()).collect(),
    }
}

fn last_stage() -> Vec<(String, String)> {
    let joined = text("deploy/Containerfile").replace("\\\n", "");
    let lines = joined.lines().filter(|line| !line.starts_with('#'));
    let instructions: Vec<_> = lines.filter_map(|line| line.split_once(' ')).collect();
    let start = instructions.iter().rposition(|(name, _)| *name == "FROM").unwrap();
    instructions[start..].iter().map(|(name, rest)| ((*name).to_owned(), (*rest).to_owned())).collect()
}

fn only<'s>(stage: &'s [(String, String)], instruction: &str) -> &'s str {
    let found: Vec<_> = stage.iter().filter(|(name, _)| name == instruction).collect();
    let [(_, rest)] = found.as_slice() else { panic!("{instruction} stands {} times", found.len()) };
    rest
}

#[test]
fn the_image_runs_its_program_as_a_user_who_owns_the_volume() {
    let image = image();
    assert!(image.user >= 1000, "a numeric user that is not root");
    let recipe = text("deploy/Containerfile");
    assert!(recipe.contains(&format!("install -D target/release/oncegate /image{}", image.program)));
    assert!(recipe.contains(&format!("COPY --from=build --chown={0}:{0} /image{1} {1}", image.user, image.volume)));
}

#[test]
fn the_build_leaves_local_state_out() {
    let ignored = text(".dockerignore");
    assert!([".git", "target", "data"].iter().all(|name| ignored.lines().any(|line| line == *name)));
}

/// Whether a list of YAML holds a text.
pub(crate) fn holds(list: &[Value], text: &str) -> bool {
    list.iter().any(|value| value == text)
}

//! An authority made for a test, and the papers that it issues.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn made() -> Self {
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Two of one name would pass for each other, with a wrong signature.
        params.distinguished_name.push(DnType::CommonName, format!("authority {:02x?}", &key.public_key_raw()[..8]));
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for `name` and its key, both in PEM.
    pub fn issue(&self, name: &str) -> (String, String) {
        self.sign(params(name))
    }

    /// The same, of last century.
    pub fn issue_expired(&self, name: &str) -> (String, String) {
        let mut params = params(name);
        (params.not_before, params.not_after) = (date_time_ymd(1998, 1, 1), date_time_ymd(1999, 12, 31));
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// `cert.pem` for `name`, its `key.pem`, and the authority's own `ca.pem`.
    pub fn papers(&self, name: &str) -> TempDir {
        let files = tempfile::tempdir().unwrap();
        self.write(name, &files);
        files
    }

    /// Writes papers over those of another certificate or authority.
    pub fn write(&self, name: &str, files: &TempDir) {
        let (certificate, key) = self.issue(name);
        for (file, text) in [("cert.pem", certificate), ("key.pem", key), ("ca.pem", self.pem())] {
            fs::write(files.path().join(file), text).unwrap();
        }
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    // With the authority's own name it would pass for signed by itself.
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

//! HTTP/1 byte by byte, from both ends.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

use super::message::{Framing, Lines, Message, lines};

/// A head without its body: the first line and the header lines.
pub struct Head {
    pub start: String,
    pub lines: Lines,
}

pub async fn read_head(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Head> {
    let start = String::from_utf8_lossy(&read_line(reader).await?).into_owned();
    Ok(Head { start, lines: read_lines(reader).await? })
}

/// Reads what the framing of `message` says.
pub async fn read_body(reader: &mut (impl AsyncBufRead + Unpin), message: &mut Message) -> io::Result<()> {
    match message.framing {
        Framing::None => {}
        Framing::Length(length) => {
            message.body = vec![0; usize::try_from(length).unwrap()];
            reader.read_exact(&mut message.body).await?;
        }
        Framing::UntilClose => {
            reader.read_to_end(&mut message.body).await?;
        }
        Framing::Open => loop {
            let size = String::from_utf8(read_line(reader).await?).unwrap();
            let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
            if size == 0 {
                message.trailers = read_lines(reader).await?;
                break;
            }
            let mut chunk = vec![0; size];
            reader.read_exact(&mut chunk).await?;
            message.body.extend(chunk);
            read_line(reader).await?;
        },
    }
    Ok(())
}

/// A body as `framing` has it, in two chunks where it has chunks.
pub fn framed(framing: Framing, body: &[u8], trailers: &[(String, Vec<u8>)]) -> Vec<u8> {
    if framing != Framing::Open {
        return body.to_vec();
    }
    let mut bytes = Vec::new();
    let (first, second) = body.split_at(body.len() / 3);
    for chunk in [first, second].into_iter().filter(|chunk| !chunk.is_empty()) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        bytes.extend([chunk, b"\r\n"].concat());
    }
    bytes.extend(b"0\r\n");
    bytes.extend(written(trailers));
    bytes.extend(b"\r\n");
    bytes
}

/// The line that says it.
pub fn framing_line(framing: Framing) -> String {
    match framing {
        Framing::None | Framing::UntilClose => String::new(),
        Framing::Length(length) => format!("Content-Length: {length}\r\n"),
        Framing::Open => "Transfer-Encoding: chunked\r\n".to_owned(),
    }
}

pub fn written(lines: &[(String, Vec<u8>)]) -> Vec<u8> {
    lines.iter().flat_map(|(name, value)| [name.as_bytes(), b": ", value, b"\r\n"].concat()).collect()
}

async fn read_lines(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Lines> {
    let mut read = Vec::new();
    loop {
        let line = read_line(reader).await?;
        if line.is_empty() {
            let split = read.iter().map(|(name, value): &(String, Vec<u8>)| (name.as_str(), value.as_slice()));
            return Ok(lines(split));
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or(io::ErrorKind::InvalidData)?;
        let (name, value) = line.split_at(colon);
        read.push((String::from_utf8_lossy(name).into_owned(), value[1..].trim_ascii().to_vec()));
    }
}

async fn read_line(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).await?;
    let text = line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(text.to_vec())
}

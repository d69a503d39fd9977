// Asks a server which training datapoints the queries of a query_set attend to most, and prints those of the first one.
//
//     node ask.js ADDRESS LAYER QUERY_SET K      with DUALFORM_TOKEN a token, and DUALFORM_CA a PEM file to trust, for TLS

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const [address, layer, query_set, k] = process.argv.slice(2);
const { DUALFORM_TOKEN: token, DUALFORM_CA: authority } = process.env;

const proto = fileURLToPath(new URL("../../../protos/dualform_proto/v1/dualform.proto", import.meta.url));
const { Memory } = grpc.loadPackageDefinition(loader.loadSync(proto, { keepCase: true, longs: Number })).dualform.v1;

// An answer may take 64 MiB, and gRPC takes 4 of one unless it is told otherwise.
const memory = new Memory(
  address,
  authority ? grpc.credentials.createSsl(readFileSync(authority)) : grpc.credentials.createInsecure(),
  { "grpc.max_receive_message_length": 64 * 2 ** 20 },
);
const metadata = new grpc.Metadata();
if (token) metadata.set("authorization", `Bearer ${token}`);

// Without a deadline the server's own one holds, ten minutes.
const ask = (method, question) =>
  promisify(memory[method]).call(memory, question, metadata, { deadline: Date.now() + 60_000 });

// Numbers are bytes, little-endian on every machine.
const numbers = (bytes, size, read) => Array.from({ length: bytes.length / size }, (_, i) => read.call(bytes, i * size));
const floats = (bytes) => numbers(bytes, 4, Buffer.prototype.readFloatLE);
const longs = (bytes) => numbers(bytes, 8, Buffer.prototype.readBigInt64LE);

function matrix(rows, cols, values) {
  const data = Buffer.alloc(4 * values.length);
  values.forEach((value, i) => data.writeFloatLE(value, 4 * i));
  return { rows, cols, dtype: "ELEMENT_TYPE_FLOAT32", data };
}

// What an error has to say beyond its code: google.rpc details, as they stand in its trailing metadata.
const { root } = protobuf.parse(`syntax = "proto3"; package google.rpc;
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }`, { keepCase: true });

function details(error) {
  const [carried] = error.metadata?.get("grpc-status-details-bin") ?? [];
  if (!carried) return {};
  const status = root.lookupType("google.rpc.Status").decode(carried);
  const info = status.details.find((detail) => detail.type_url.endsWith("/google.rpc.ErrorInfo"));
  return info ? root.lookupType("google.rpc.ErrorInfo").decode(info.value) : {};
}

try {
  const { queries } = await ask("QuerySet", { name: query_set, layer });
  const vectors = matrix(queries.rows, queries.cols, floats(queries.data));
  const hits = await ask("TopK", { layer, queries: { vectors }, k: Number(k) });
  const slots = longs(hits.ids);
  const scores = floats(hits.scores);
  const [first] = longs(hits.counts.data); // of the slots, as many are the first query's
  for (let i = 0; i < first; i++) console.log(`${slots[i]}\t${scores[i]}`);
} catch (error) {
  const { reason, metadata: more } = details(error);
  console.error(`${reason ?? grpc.status[error.code]}: ${error.details}`);
  if (more?.hint) console.error(more.hint);
  process.exitCode = 1;
} finally {
  memory.close();
}

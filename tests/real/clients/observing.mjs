// What the programs for node share; it is put in front of each of them. See observing.py, its twin.

const SIMULATOR = "simulator";
const LLAMA = "llama.cpp";
const known = [];

function on(servers, name, scenario) {
  known.push([servers, name, scenario]);
}

async function goThrough() {
  const seen = {};
  for (const [servers, name, scenario] of known) {
    if (servers.includes(process.argv[2])) seen[name] = await scenario();
  }
  console.log("\n" + JSON.stringify(seen, (_, value) => (value instanceof Date ? value.toISOString() : value)));
}

async function all(stream) {
  const read = [];
  for await (const item of stream) read.push(item);
  return read;
}

async function refusal(call) {
  let raised = null;
  try {
    await call();
  } catch (problem) {
    const { status, code, param, type, error } = problem;
    raised = { raised: problem.constructor.name, text: problem.message, status, code, param, type, error };
  }
  if (raised === null) throw new Error("nothing was raised");
  return raised;
}

async function readUntilItBreaks(stream) {
  const read = [];
  try {
    for await (const item of stream) read.push(item);
  } catch {
    return { read, broke: true };
  }
  return { read, broke: false };
}

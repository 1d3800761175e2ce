// A client and a worker for the HTTP API of `holdfast server`. Node 22.18 or newer runs this file as it is:
//   node holdfast.ts work                          a worker with the task `greet` below
//   node holdfast.ts enqueue billing.charge '{"order": 42}'
// HOLDFAST_URL is the address of the server, HOLDFAST_TOKEN a token of the role worker or producer.
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { argv, env, pid, stderr } from "node:process";
import { setTimeout as pause } from "node:timers/promises";
import { pathToFileURL } from "node:url";

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Arguments = { [name: string]: Json };
export type Claimed = {
  id: string; task: string; queue: string; arguments: Arguments; attempt: number;
  fence: number; claim_id: string; lease_s: number; beat_s: number; timeout_s: number | null;
};
export type Handler = (args: Arguments, job: Claimed, signal: AbortSignal) => Json | void | Promise<Json | void>;
type Outcome = { outcome: string; lease: Lease; [more: string]: unknown };
type Lease = { id: string; fence: number; claim_id: string };
type Running = { job: Claimed; stop: AbortController; renewedAt: number; done: Promise<void> };

const ENDED = ["done", "dead", "cancelled", "rolled_back"];
const GRACE_MS = Number(env.GRACE_S ?? 10) * 1_000; // how long handlers may end by themselves

export class Problem extends Error {
  code: string;
  constructor(status: number, code: string, detail: string) {
    super(`${status} ${code}: ${detail}`);
    this.code = code; // stable: see docs/http-api.md
  }
}

export class Holdfast {
  url: string;
  token: string | undefined;

  constructor(url = env.HOLDFAST_URL ?? "http://127.0.0.1:8787", token = env.HOLDFAST_TOKEN) {
    this.url = url.replace(/\/$/, "");
    this.token = token;
  }

  // Every request below is safe to repeat, so one whose answer was lost is sent again, for as long as `signal` allows.
  async call(method: string, path: string, body?: unknown, signal?: AbortSignal, tries = Infinity): Promise<any> {
    const headers: Record<string, string> = body === undefined ? {} : { "content-type": "application/json" };
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    for (let turn = 0; ; turn++) {
      try {
        const ends = AbortSignal.any([AbortSignal.timeout(40_000), ...(signal ? [signal] : [])]);
        const text = body === undefined ? undefined : JSON.stringify(body);
        const answer = await fetch(this.url + path, { method, headers, body: text, signal: ends });
        const data = await answer.json();
        if (answer.ok) return data;
        if (answer.status !== 503 || turn + 1 >= tries) throw new Problem(answer.status, data.code, data.detail);
      } catch (error) {
        if (error instanceof Problem || signal?.aborted || turn + 1 >= tries) throw error;
        if (turn === 1) stderr.write(`no answer from ${this.url}: ${(error as Error).cause ?? error}; trying again\n`);
      }
      await pause(Math.random() * Math.min(10_000, 250 * 2 ** turn), undefined, { signal });
    }
  }

  async enqueue(task: string, kwargs: Arguments = {}, options: { [name: string]: Json } = {}): Promise<string> {
    const job = { id: randomUUID().replaceAll("-", ""), task, kwargs, ...options }; // our id: sent twice, it is one job
    return (await this.call("POST", "/v1/jobs", job, undefined, 5)).id;
  }

  async result(id: string, timeoutMs = 60_000): Promise<Json> {
    for (const until = Date.now() + timeoutMs; Date.now() < until; await pause(200)) {
      const job = await this.call("GET", `/v1/jobs/${id}`, undefined, undefined, 5);
      if (job.state === "done") return job.result;
      if (ENDED.includes(job.state)) throw new Error(`job ${id} is ${job.state}: ${job.error}`);
    }
    throw new Error(`job ${id} has not ended in time`);
  }
}

export class Worker {
  api: Holdfast;
  handlers: Map<string, Handler>;
  queues: string[];
  slots: number;
  #id = "";
  #running = new Map<string, Running>();
  #stopping = new AbortController();

  constructor(api: Holdfast, queues: string[], handlers: Record<string, Handler>, slots = 4) {
    [this.api, this.queues, this.slots] = [api, queues, slots];
    this.handlers = new Map(Object.entries(handlers));
  }

  stop(): void {
    this.#stopping.abort(); // running jobs get a moment; then they are asked to stop, and given back
  }

  async run(): Promise<void> {
    const { signal } = this.#stopping;
    void this.#beat();
    while (!signal.aborted) {
      try {
        await this.#enrol(signal);
        await this.#claim(signal);
      } catch (error) {
        if (error instanceof Problem && error.code === "worker_gone") this.#lose("this worker was declared dead");
        else if (!signal.aborted) throw error;
      }
    }
    const all = () => Promise.all([...this.#running.values()].map((each) => each.done));
    await Promise.race([all(), pause(GRACE_MS, undefined, { ref: false })]);
    for (const each of this.#running.values()) each.stop.abort(new Error("the worker stops"));
    await Promise.race([all(), pause(GRACE_MS, undefined, { ref: false })]);
    if (this.#id) await this.api.call("DELETE", `/v1/workers/${this.#id}`, undefined, undefined, 3);
    this.#id = "";
  }

  async #enrol(signal: AbortSignal): Promise<void> {
    if (this.#id) return;
    const id = randomUUID(); // every start needs a new one; the name stays
    const tasks = [...this.handlers.keys()];
    const body = { id, name: `${hostname()}-node`, host: hostname(), pid, queues: this.queues, tasks, slots: this.slots };
    await this.api.call("POST", "/v1/workers", { ...body, beat_s: 5 }, signal);
    this.#id = id;
  }

  async #claim(signal: AbortSignal): Promise<void> {
    const limit = this.slots - this.#running.size;
    if (limit === 0) return void (await Promise.race([...this.#running.values()].map((each) => each.done)));
    const claim = { worker: this.#id, claim_id: randomUUID(), queues: this.queues, tasks: [...this.handlers.keys()], limit };
    const sentAt = performance.now(); // the lease counts from before the request, whatever the clocks say
    for (const job of (await this.api.call("POST", "/v1/claim", { ...claim, wait_s: 20 }, signal)).jobs as Claimed[]) {
      const running: Running = { job, stop: new AbortController(), renewedAt: sentAt, done: Promise.resolve() };
      this.#running.get(job.id)?.stop.abort(new Error("another attempt has the job")); this.#running.set(job.id, running);
      running.done = this.#attempt(running);
    }
  }

  async #attempt(running: Running): Promise<void> {
    const { job, stop } = running, lease = { id: job.id, fence: job.fence, claim_id: job.claim_id };
    let outcome: Outcome;
    try {
      const result = await this.handlers.get(job.task)!(job.arguments, job, stop.signal);
      outcome = { outcome: "succeeded", lease, result: result ?? null };
    } catch (error) {
      const why = stop.signal.aborted ? stop.signal.reason : null;
      if (why?.message === "cancelled") outcome = { outcome: "cancelled", lease };
      else if (why) outcome = { outcome: "released", lease };
      else outcome = { outcome: "failed", lease, error: error instanceof Error ? `${error.name}: ${error.message}` : `${error}` };
    }
    for (;;) { // the lease is renewed until the store has the outcome
      const refused = (error: Error) => ({ answers: [error.message] }); // such as a result that is too large
      const { answers } = await this.api.call("POST", "/v1/settle", { outcomes: [outcome] }).catch(refused);
      if (!["accepted", "already", "locked"].includes(answers[0])) stderr.write(`job ${job.id}: not settled: ${answers[0]}\n`);
      if (answers[0] !== "locked") break;
      await pause(500);
    }
    if (this.#running.get(job.id) === running) this.#running.delete(job.id);
  }

  // Renew all leases in one request. Without an answer the handlers stop before their leases end.
  async #beat(): Promise<void> {
    for (let beatAt = 0; !this.#stopping.signal.aborted || this.#running.size > 0; ) {
      await pause(250, undefined, { ref: false });
      const sentAt = performance.now();
      const sent = [...this.#running.values()];
      for (const { job, stop, renewedAt } of sent)
        if (sentAt - renewedAt > (job.lease_s * 1000 * 5) / 6) stop.abort(new Error("the lease has ended"));
      const isDue = sent.some(({ job, renewedAt }) => sentAt - renewedAt >= job.beat_s * 1000);
      if (!this.#id || (!isDue && sentAt - beatAt < 5_000)) continue;
      const leases = sent.map(({ job }) => ({ id: job.id, fence: job.fence, claim_id: job.claim_id }));
      try {
        const body = { worker: this.#id, leases, stopping: this.#stopping.signal.aborted };
        const answer = await this.api.call("POST", "/v1/beat", body, AbortSignal.timeout(5_000), 1);
        for (const each of sent) {
          if (answer.lost.includes(each.job.id)) each.stop.abort(new Error("another attempt has the job"));
          else if (answer.cancelled.includes(each.job.id)) each.stop.abort(new Error("cancelled"));
          if (!answer.skipped.includes(each.job.id)) each.renewedAt = sentAt;
        }
        beatAt = sentAt;
      } catch (error) {
        if (error instanceof Problem && error.code === "worker_gone") this.#lose("this worker was declared dead");
      }
    }
  }

  #lose(why: string): void {
    this.#id = "";
    for (const { stop } of this.#running.values()) stop.abort(new Error(why));
  }
}

if (import.meta.url === pathToFileURL(argv[1] ?? "").href) {
  const api = new Holdfast();
  if (argv[2] === "enqueue") console.log(await api.result(await api.enqueue(argv[3]!, JSON.parse(argv[4] ?? "{}"))));
  else {
    const worker = new Worker(api, ["node"], { greet: ({ name }) => `Hello ${name}, from Node ${process.version}` });
    for (const name of ["SIGTERM", "SIGINT"] as const) process.on(name, () => worker.stop());
    console.log("working");
    await worker.run();
  }
}

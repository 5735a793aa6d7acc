// Runs named checks in order, prints a TAP-like line for each, and says by the exit status whether all passed.

const checks = []
export const check = (name, work) => checks.push({ name, work })

export async function until(what, condition, limit = 20000) {
  for (const end = Date.now() + limit; Date.now() < end; await new Promise((go) => setTimeout(go, 20))) {
    if (await condition()) return
  }
  throw new Error(`in vain: ${what}`)
}

export async function run() {
  let failed = 0
  for (const [index, { name, work }] of checks.entries()) {
    try {
      await work()
      console.log(`ok ${index + 1} - ${name}`)
    } catch (error) {
      failed += 1
      console.log(`not ok ${index + 1} - ${name}`)
      console.error(error)
    }
  }
  console.log(`1..${checks.length}`)
  process.exit(failed ? 1 : 0)
}

// Sequelize at its usual work: models, associations, transactions, raw queries, its own pool.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createRequire } from 'node:module'

import { check, run } from './tap.mjs'

// ES modules do not look into NODE_PATH; require does.
const require = createRequire(import.meta.url)
const { Sequelize, DataTypes, Op, QueryTypes, Transaction } = require('sequelize')

async function opened(work) {
  const schema = `sequelize_${randomBytes(6).toString('hex')}`
  const pool = { max: 4, acquire: 20000 }
  const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false, pool, schema, dialectOptions: { application_name: 'sequelize' } })
  try {
    await sequelize.createSchema(schema)
    const Author = sequelize.define('author', { name: { type: DataTypes.STRING(50), unique: true } })
    const Book = sequelize.define('book', {
      id: { type: DataTypes.UUID, primaryKey: true, defaultValue: DataTypes.UUIDV4 },
      title: DataTypes.STRING,
      price: DataTypes.DECIMAL(12, 4),
      tags: DataTypes.ARRAY(DataTypes.TEXT),
      extra: DataTypes.JSONB,
      kind: DataTypes.ENUM('novel', 'essay'),
    })
    Author.hasMany(Book)
    Book.belongsTo(Author)
    await sequelize.sync()
    await sequelize.sync({ alter: true })
    return await work({ sequelize, Author, Book, schema })
  } finally {
    await sequelize.close()
  }
}

check('models from creating to deleting', () => opened(async ({ Author, Book }) => {
  // In a transaction: without one, any connection of the pool may answer, and a replica need not have it yet.
  await Author.sequelize.transaction(async (transaction) => {
    const books = Array.from({ length: 50 }, (_, n) => ({ title: `b${n}`, price: n, tags: ['x', `${n}`], extra: { n }, kind: 'novel' }))
    const author = await Author.create({ name: 'Ursula', books }, { include: Book, transaction })
    const found = await Author.findOne({ where: { name: 'Ursula' }, include: Book, transaction })
    assert.equal(found.books.length, 50)
    const seventh = await Book.findOne({ where: { tags: { [Op.contains]: ['7'] } }, transaction })
    assert.deepEqual([seventh.title, seventh.price, seventh.extra], ['b7', '7.0000', { n: 7 }])
    await seventh.update({ extra: { deep: [null, { 'é': '✓' }] } }, { transaction })
    assert.equal(await Book.count({ where: { 'extra.deep': { [Op.ne]: null } }, transaction }), 1)
    const [, made] = await Author.upsert({ id: author.id, name: 'Iain' }, { transaction })
    assert.ok(made === null || made === false)
    assert.equal(await Book.sum('price', { transaction }), 1225)
    assert.equal(await Book.destroy({ where: { price: { [Op.gte]: 10 } }, transaction }), 40)
    await Author.bulkCreate(Array.from({ length: 500 }, (_, n) => ({ name: `a${n}` })), { updateOnDuplicate: ['name'], transaction })
    assert.equal(await Author.count({ transaction }), 501)
  })
}))

check('transactions', () => opened(async ({ sequelize, Author }) => {
  await assert.rejects(sequelize.transaction(async (transaction) => {
    await Author.create({ name: 'one' }, { transaction })
    throw new Error('on purpose')
  }), /on purpose/)
  await sequelize.transaction({ isolationLevel: Transaction.ISOLATION_LEVELS.SERIALIZABLE }, async (transaction) => {
    await Author.create({ name: 'two' }, { transaction })
    const nested = await sequelize.transaction({ transaction })
    await Author.create({ name: 'three' }, { transaction: nested })
    await nested.rollback()
    const [author] = await Author.findAll({ where: { name: 'two' }, lock: true, transaction })
    await author.increment('id', { by: 1000, transaction })
    const names = await Author.findAll({ transaction })
    assert.deepEqual(names.map(({ name }) => name), ['two'])
  })
  await assert.rejects(Author.create({ name: 'two' }), { name: 'SequelizeUniqueConstraintError' })
}))

check('many at once', () => opened(async ({ sequelize, Author, schema }) => {
  await Promise.all(Array.from({ length: 100 }, (_, n) => sequelize.transaction(async (transaction) => {
    await Author.create({ name: `a${n}` }, { transaction })
    assert.equal(await Author.count({ where: { name: `a${n}` }, transaction }), 1)
  })))
  const text = `/* kingpost.route=primary */ SELECT count(*)::int AS n FROM "${schema}".authors WHERE name LIKE :name`
  const rows = await sequelize.query(text, { replacements: { name: 'a%' }, type: QueryTypes.SELECT })
  assert.deepEqual(rows, [{ n: 100 }])
  const bound = await sequelize.query('SELECT $1::int + 1 AS n', { bind: [41], type: QueryTypes.SELECT })
  assert.deepEqual(bound, [{ n: 42 }])
}))

await run()

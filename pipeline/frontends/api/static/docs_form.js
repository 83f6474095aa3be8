// A form of a JSON schema: a field for each key. Values from a server are set as text, never as HTML.

const PREFIX = "#/components/schemas/";

/** Follow references, and leave out null of what may be null. */
export function resolved(schema, components) {
  let found = schema;
  for (let depth = 0; depth < 9; depth += 1) {
    if (found.$ref) found = { ...components[found.$ref.slice(PREFIX.length)], ...found, $ref: undefined };
    else if (found.anyOf) {
      const kinds = found.anyOf.filter((one) => one.type !== "null");
      if (kinds.length !== 1) return found;
      found = { ...found, ...kinds[0], anyOf: undefined };
    } else return found;
  }
  return found;
}

const isFile = (schema) => schema.type === "string" && schema.contentEncoding === "base64";

function inputOf(schema) {
  if (schema.enum) {
    const select = document.createElement("select");
    for (const value of schema.enum) select.append(new Option(String(value), JSON.stringify(value)));
    return select;
  }
  const input = document.createElement("input");
  if (schema.type === "boolean") input.type = "checkbox";
  else if (schema.type === "integer" || schema.type === "number") {
    input.type = "number";
    input.step = schema.type === "integer" ? "1" : "any";
  } else if (isFile(schema)) input.type = "file";
  else {
    const area = document.createElement("textarea");
    area.rows = schema.type === "string" ? 2 : 4;
    if (schema.type !== "string") area.className = "json";
    return area;
  }
  return input;
}

function described(schema, isRequired) {
  const said = [schema.description, isRequired ? "required" : ""];
  if (!isRequired && schema.default !== undefined && schema.default !== "") {
    said.push(`default ${JSON.stringify(schema.default)}`);
  }
  if (schema.type === "array" || schema.type === "object") said.push("as JSON");
  for (const [key, sign] of [["minimum", "≥"], ["maximum", "≤"]]) {
    if (schema[key] !== undefined) said.push(`${sign} ${schema[key]}`);
  }
  return said.filter(Boolean).join(", ");
}

/** One key of a request: its input, what is written there, and what it is in JSON. */
class Field {
  constructor(name, schema, isRequired, example) {
    this.name = name;
    this.schema = schema;
    this.isRequired = isRequired;
    this.input = inputOf(schema);
    this.input.id = `field_${name}`;
    this.input.name = name;
    this.element = document.createElement("div");
    this.element.className = "field";
    const label = document.createElement("label");
    label.htmlFor = this.input.id;
    label.textContent = name || "The request, as JSON";
    const note = document.createElement("small");
    note.id = `note_${name}`;
    note.textContent = described(schema, isRequired);
    this.wrong = document.createElement("small");
    this.wrong.className = "wrong";
    this.wrong.id = `wrong_${name}`;
    this.wrong.hidden = true;
    this.input.setAttribute("aria-describedby", `${note.id} ${this.wrong.id}`);
    this.element.append(label, this.input, note, this.wrong);
    this.fill(example);
  }

  get isFile() { return this.input.type === "file"; }

  fill(example) {
    if (this.isFile || example === undefined) return;
    if (this.input.type === "checkbox") this.input.checked = example === true;
    else if (this.schema.enum) this.input.value = JSON.stringify(example);
    else this.input.value = this.schema.type === "string" ? String(example) : JSON.stringify(example);
  }

  /** Return the value, undefined for none; throws an Error for text that is no JSON. */
  async value() {
    if (this.isFile) return this.input.files.length ? base64(this.input.files[0]) : undefined;
    if (this.input.type === "checkbox") return this.input.checked;
    const text = this.input.value;
    if (this.schema.type === "string" && !this.schema.enum) {
      return text === "" && !this.isRequired ? undefined : text;
    }
    return text.trim() === "" ? undefined : JSON.parse(text);
  }

  complain(text) {
    this.wrong.hidden = !text;
    this.wrong.textContent = text;
    if (text) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) {
    text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  }
  return btoa(text);
}

/** The form of one pipeline. */
export class Form {
  constructor(parent, schema, components, example) {
    const whole = resolved(schema, components);
    const required = new Set(whole.required);
    const keys = Object.entries(whole.properties ?? {});
    this.isFree = keys.length === 0;
    this.fields = this.isFree
      ? [new Field("", { type: "object" }, true, example ?? {})]
      : keys.map(([name, one]) => new Field(
        name, resolved(one, components), required.has(name),
        (example ?? {})[name] ?? (resolved(one, components).type === "boolean" ? one.default : undefined),
      ));
    parent.replaceChildren(...this.fields.map((field) => field.element));
  }

  /** The file of the first picture, if there is one. */
  get picture() {
    const found = this.fields.find((field) => field.isFile && field.input.files.length);
    const file = found?.input.files[0];
    return file?.type.startsWith("image/") ? file : undefined;
  }

  /**
   * Return the request, and the files in it by key; throws an Error, shown at its field, for what
   * is no JSON.
   */
  async read() {
    const request = {};
    const files = {};
    for (const field of this.fields) {
      field.complain("");
      try {
        const value = await field.value();
        if (this.isFree) return { request: value ?? {}, files };
        if (value === undefined) continue;
        request[field.name] = value;
        if (field.isFile) files[field.name] = field.input.files[0].name;
      } catch (error) {
        field.complain(`no JSON: ${error.message}`);
        field.input.focus();
        throw error;
      }
    }
    return { request, files };
  }

  /** Show what a server says of a key at its field: `inputs[3].x: expected ...`. */
  complain(message) {
    const key = /^([^.[:]+)/.exec(message)?.[1];
    const field = this.fields.find((one) => one.name === key);
    if (field) {
      field.complain(message);
      field.input.focus();
    }
  }
}

// What the pages do by themselves. All of it is comfort: each page is whole without.

import { takeFromFragment } from "./access.js";
import { listen as listenForBrush } from "./brush.js";
import { listen as listenForKeys } from "./keys.js";
import { begin, listen } from "./page.js";
import { peeks } from "./peek.js";
import { listen as listenToPublish } from "./publish.js";
import { listen as listenForTime } from "./timeline.js";
import "./door.js";

takeFromFragment();
listen();
listenForKeys();
listenForBrush();
listenForTime();
listenToPublish();
peeks();
begin();
